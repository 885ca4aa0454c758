"""Bytes to clean lines, and which rank wrote them (pure)."""
