"""Pages: panes that are shown alone, each to answer one question."""
