"""Views: they only read run directories."""
