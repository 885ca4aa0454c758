"""Turn log bytes into hits: windows, signatures, tracebacks and prefix unwrapping."""
