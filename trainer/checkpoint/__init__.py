"""Saving and resuming: `saving` is what all ranks agree on, `writer` the thread that writes, `storage` and `shares` the files."""
