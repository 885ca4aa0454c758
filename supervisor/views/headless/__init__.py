"""Output without a screen: lines as a run goes, its story, a still chart, the report of a trial."""
