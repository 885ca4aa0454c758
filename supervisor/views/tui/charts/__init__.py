"""Charts in braille cells."""
