"""Handles what comes after an attempt: its verdict, the decision, and the next launch."""
