"""Reads and validates job files and product settings, and resolves them into a single spec."""
