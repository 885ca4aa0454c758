"""Flags silences, investigates them, and ends those that are hangs."""
