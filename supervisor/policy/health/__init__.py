"""Health of a run: its usual pace, stalls, slow ranks, and early signs of trouble.

Pure: numbers in, findings out. Health is a second axis beside the run's states. Nothing here ends a run; the keeper asks `ending`.
"""
