"""The terminal app, a view that reads a run directory and writes nothing but requests into it."""
