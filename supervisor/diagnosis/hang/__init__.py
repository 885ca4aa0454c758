"""What stacks and recorders say of ranks that wait."""
