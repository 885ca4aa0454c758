"""Plans a launch as plain data, what changes in the next launch, and the guided start of a job."""
