"""Log bytes to hits: windows, signatures, tracebacks, unwrapped prefixes."""
