"""Processes: launched, found again, ended."""
