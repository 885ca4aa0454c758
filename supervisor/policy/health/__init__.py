"""Tracks the health of a run: its usual pace, stalls, slow ranks and early signs of trouble.

Pure: numbers in, warnings out. Health is a second axis beside the run's states. Nothing here stops a run; the
keeper asks `ending`.
"""
