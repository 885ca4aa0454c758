"""What the screens of the app share: keys and footers, the reading thread, requests, what is remembered of a person."""
