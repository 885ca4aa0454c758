"""Silences: flagged, investigated, and ended if they are hangs."""
