"""The only room that acts: spawns, stops, relaunches, writes the run directory."""
