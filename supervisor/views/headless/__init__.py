"""Output when there is no screen: log lines during a run, its summary, a still chart, the report of a trial."""
