"""The run directory. Only this package knows its file names and schema."""
