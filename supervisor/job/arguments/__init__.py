"""Reads the command lines of stoker, torchrun, other launchers and the script."""
