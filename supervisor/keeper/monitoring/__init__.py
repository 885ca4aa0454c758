"""Everything that watches a live attempt."""
