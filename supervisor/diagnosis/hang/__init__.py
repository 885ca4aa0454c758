"""Interpret stacks and flight-recorder dumps from waiting ranks."""
