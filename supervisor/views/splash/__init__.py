"""What stands on the terminal while the app is loaded."""
