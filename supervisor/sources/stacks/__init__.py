"""The activity of ranks: Python stacks, flight-recorder dumps, NCCL's own report."""
