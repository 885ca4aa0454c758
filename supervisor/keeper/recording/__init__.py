"""Turns observations into journal events and series."""
