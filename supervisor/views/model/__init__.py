"""A run as a view sees it, live or replayed: state, series, and nearby lines."""
