"""Trainings of real frameworks under stoker, in an environment that has them (make frameworks)."""
