"""Training programs that know nothing of stoker."""
