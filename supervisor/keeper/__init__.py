"""The keeper of a run. It starts torchrun, watches it, decides what follows, and writes what it learns to the run directory.

Its parts import in one order only, which import-linter checks:
``base < process < monitoring < stalls < planning < recording < observer < attempt_monitor < loop, requests < leader, follower``.
"""
