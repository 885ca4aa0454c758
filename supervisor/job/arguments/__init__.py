"""Command lines: those of stoker, torchrun, other launchers and the script."""
