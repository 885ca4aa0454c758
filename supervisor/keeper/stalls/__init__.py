"""Silences: flagged, looked into, ended where they are hangs."""
