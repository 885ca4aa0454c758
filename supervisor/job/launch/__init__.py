"""What one launch executes, what the next one would change, and how a job is begun."""
