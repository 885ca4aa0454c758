"""Reads metrics from any training log. A grammar parses each line shape once; later lines of that shape hit a cache."""

from supervisor.sources.metrics.metric_reader import (
    Columns,
    DrawnState,
    MetricReader,
    MetricSample,
    standing_states,
)
from supervisor.sources.metrics.names import CANONICAL

__all__ = [
    "CANONICAL",
    "Columns",
    "DrawnState",
    "MetricReader",
    "MetricSample",
    "standing_states",
]
