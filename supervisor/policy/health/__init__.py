"""Tracks the health of a run: its usual pace, stalls, slow ranks and early signs of trouble.

Pure: numbers in, warnings out. Health is independent of the run's state. Nothing here stops a run; the
keeper asks `ending`.
"""
