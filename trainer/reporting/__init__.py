"""What a training reports: lines on the console, records for a supervisor, memory readings."""
