"""A run as a view sees it: state, series, nearby lines; live or replayed."""
