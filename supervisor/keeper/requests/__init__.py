"""Signals and request files, and what each may do."""
