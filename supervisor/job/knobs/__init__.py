"""Finds a third-party script's settings for batch, checkpoints and data loader, and where they are set."""
