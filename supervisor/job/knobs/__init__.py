"""A foreign script's settings: where they stand, which hold its batch, its checkpoints and its data loader."""
