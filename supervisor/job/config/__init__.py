"""Job files and product settings: read, checked, resolved to one spec."""
