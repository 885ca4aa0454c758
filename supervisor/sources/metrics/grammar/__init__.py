"""The grammar that reads one line: its values, their names and places, and whether the line reports on training."""
