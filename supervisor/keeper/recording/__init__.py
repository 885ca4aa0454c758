"""From observations to journal and series."""
