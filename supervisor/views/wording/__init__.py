"""What people read, in English and Chinese."""
