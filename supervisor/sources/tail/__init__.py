"""Reads growing log files."""
