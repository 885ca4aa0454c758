"""Which settings of a foreign script hold its batch and its accumulation: found, read as numbers, set."""
