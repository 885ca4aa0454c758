"""Turn bytes into clean lines and find the rank that wrote each one (pure)."""
