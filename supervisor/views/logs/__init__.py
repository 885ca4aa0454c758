"""Logs of any size: files, merged order, queries, pages."""
