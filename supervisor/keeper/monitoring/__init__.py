"""Watches a live attempt: its logs, processes, GPUs and checkpoints."""
