"""Many nodes."""
