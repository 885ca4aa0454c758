"""Views, which only ever read run directories."""
