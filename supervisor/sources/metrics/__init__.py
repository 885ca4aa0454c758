"""Reads metrics from any training log. A grammar reads each line shape once, and a cache reads its later lines."""

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
