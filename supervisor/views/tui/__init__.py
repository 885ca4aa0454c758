"""The terminal app, a view that reads a run directory and only writes requests into it."""
