"""One launch as data, the changes of the next one, and the guided start of a job."""
