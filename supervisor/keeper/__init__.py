"""The keeper of a run: it starts torchrun, watches it, decides what follows, and writes all it learns into the run directory.

Its parts import in one order only, which import-linter checks:
``base < process < monitoring < stalls < planning < recording < observer < attempt_monitor < loop, requests < leader, follower``.
"""
