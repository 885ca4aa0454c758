"""What happens after an attempt: its verdict, the decision, the next launch."""
