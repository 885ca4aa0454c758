"""What opens over a screen and asks something."""
