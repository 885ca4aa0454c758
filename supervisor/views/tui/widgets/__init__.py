"""Panes and bars of the dashboard, each drawn as strips of cells."""
