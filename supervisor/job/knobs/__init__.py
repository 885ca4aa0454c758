"""The flags by which a script takes batch, accumulation and checkpoints: found, read, set."""
