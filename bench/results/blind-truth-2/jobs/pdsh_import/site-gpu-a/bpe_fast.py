"""Stands in for a compiled tokenizer."""
