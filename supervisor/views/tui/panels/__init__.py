"""The panes of a run, and their words. Each pane draws a snapshot and does not depend on its screen."""
