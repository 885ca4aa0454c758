"""Reads what ranks are doing: Python stacks, flight recorder dumps and NCCL's own report."""
