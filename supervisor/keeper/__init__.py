"""The keeper of a run. It starts torchrun, watches it, decides what to do next, and records everything in the run directory.

Imports between its parts go in one direction only, enforced by import-linter:
``base < process < monitoring < stalls < planning < recording < observer < attempt_monitor < loop, requests < leader, follower``.
"""
