"""Charts drawn with braille characters."""
