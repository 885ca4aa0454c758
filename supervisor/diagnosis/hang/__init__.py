"""Read the stacks and flight-recorder dumps of waiting ranks."""
