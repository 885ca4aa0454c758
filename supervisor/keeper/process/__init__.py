"""Launches processes, finds them again, and stops them."""
