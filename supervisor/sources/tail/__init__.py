"""Log files as they grow."""
