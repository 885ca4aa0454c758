"""The command line: one file a verb behind a lazy table."""
