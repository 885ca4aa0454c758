"""The log pane and the log screen."""
