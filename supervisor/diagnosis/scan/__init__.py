"""Turn log bytes into hits: windows, signatures, tracebacks, unwrapped prefixes."""
