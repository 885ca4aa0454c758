"""Turns bytes into clean lines, and finds the rank that wrote each (pure)."""
