"""Output without the TUI: log lines during a run, its summary, static charts, and trial reports."""
