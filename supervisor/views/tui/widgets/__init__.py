"""The dashboard's panes and bars, each drawn as strips of terminal cells."""
