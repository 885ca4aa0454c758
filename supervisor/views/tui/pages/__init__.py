"""Pages: full-screen panes that each answer one question."""
