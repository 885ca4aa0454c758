"""Parses the command lines of stoker, torchrun, other launchers and the training script."""
