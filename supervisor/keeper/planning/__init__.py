"""After an attempt: its verdict, the decision, the next launch."""
