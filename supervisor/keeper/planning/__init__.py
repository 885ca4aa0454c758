"""What follows an attempt: its verdict, the decision, the next launch."""
