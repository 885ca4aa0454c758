"""Bytes to clean lines, and who said them (pure)."""
