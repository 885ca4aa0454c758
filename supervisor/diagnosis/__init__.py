"""Find why an attempt failed (pure): bytes, iterators and records in, one verdict out."""
