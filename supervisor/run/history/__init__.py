"""What earlier attempts and runs taught: recovery times, repeated failures, memory."""
