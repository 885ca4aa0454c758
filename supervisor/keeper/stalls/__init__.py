"""Flags silences, investigates them, and stops the attempt if a silence is a hang."""
