"""Finds a third-party script's batch, checkpoint and data loader settings, and where each one is set."""
