"""Command lines: stoker's own, torchrun's, a launcher's and the script's."""
