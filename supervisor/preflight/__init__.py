"""Checks before the launch, each a small function."""
