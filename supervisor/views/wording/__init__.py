"""The words that people read, in English and Chinese."""
