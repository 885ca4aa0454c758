"""The machine, out of /proc and the control groups."""
