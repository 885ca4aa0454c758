"""The list of runs, runs side by side, replays."""
