"""The panes of a run, and the words in them: each draws a snapshot and knows nothing of the screen that it stands on."""
