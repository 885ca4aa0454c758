"""The terminal app: a view that only reads a run directory and writes requests into it."""
