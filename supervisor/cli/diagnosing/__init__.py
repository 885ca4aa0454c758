"""What ``stoker diagnose`` reads, and how a verdict is printed."""
