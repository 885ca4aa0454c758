"""The job to run, as data (pure)."""
