"""What to run, as data (pure)."""
