"""The settings of a foreign script: their places, and those of its batch, checkpoints and data loader."""
