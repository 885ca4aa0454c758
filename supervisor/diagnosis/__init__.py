"""Why it failed (pure): bytes, iterators and records in, one verdict out."""
