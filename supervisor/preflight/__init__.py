"""Checks that run before the launch, each a small function."""
