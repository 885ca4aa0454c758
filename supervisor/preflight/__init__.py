"""Checks before the launch: one small function a check."""
