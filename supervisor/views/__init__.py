"""Views, which only read run directories."""
