"""Titles and advice of verdicts."""
