"""What a training script's source shows, parsed and never run: its files, its settings, its batch, its conditions."""
