"""Code shared by the app's screens: keys and footers, the reading thread, requests, saved choices."""
