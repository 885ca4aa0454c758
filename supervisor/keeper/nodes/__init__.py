"""A run on several nodes: the keeper that leads, those that follow it, and what they have in common (docs/nodes.md)."""
