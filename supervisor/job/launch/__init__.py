"""Plans one launch as data, the changes of the next launch, and the guided start of a job."""
