"""The command line. Each verb is a module, imported lazily."""
