"""Reads what ranks are doing: Python stacks, flight recorder dumps, NCCL's own report."""
