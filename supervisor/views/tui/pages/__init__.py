"""Pages: panes that are shown alone, each in answer to one question."""
