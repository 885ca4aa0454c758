"""stoker's supervisor: launches torchrun, watches it, says why it failed, restarts it smaller."""

__version__ = "0.1.0"
