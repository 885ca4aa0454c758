"""Metrics from any training log: a grammar reads a line's shape once, and a cache reads later lines of that shape."""

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
