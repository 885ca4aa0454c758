"""Who holds a run, who looks at it, and how a view asks its keeper for something."""
