"""Who holds a run, who is watching it, and how a view sends its keeper a request."""
