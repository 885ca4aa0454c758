"""Code shared by the app's screens: keys and footers, the reader thread, requests, saved choices."""
