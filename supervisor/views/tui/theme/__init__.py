"""Colours and glyphs."""
