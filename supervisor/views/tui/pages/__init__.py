"""Pages: full-screen panes, each of which answers one question."""
