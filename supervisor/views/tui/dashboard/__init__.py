"""The dashboard: its panes, keys and actions."""
