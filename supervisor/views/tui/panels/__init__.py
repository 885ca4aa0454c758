"""The panes of a run and the text they show. Each pane draws a snapshot, independently of its screen."""
