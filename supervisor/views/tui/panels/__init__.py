"""The panes of a run, and their words: each draws a snapshot and knows nothing about its screen."""
