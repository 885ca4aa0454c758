"""The words that users read, in English and Chinese."""
