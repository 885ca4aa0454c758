"""Reads and checks job files and product settings, and resolves them to one spec."""
