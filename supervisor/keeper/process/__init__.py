"""Launches processes, finds them again, and ends them."""
