"""Plans launches as plain data, along with the changes for the next launch and the guided start of a job."""
