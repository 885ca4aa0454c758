"""How a foreign script starts from a checkpoint: the flag that takes its path, or what it does by itself."""
