"""The only package that acts: spawns, stops, relaunches, writes the run directory."""
