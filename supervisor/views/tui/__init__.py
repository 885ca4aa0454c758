"""The terminal app: a view that only reads a run directory, and puts requests into it."""
