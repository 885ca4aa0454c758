"""Determine why an attempt failed. Pure functions: bytes, iterators and records in, one verdict out."""
