"""Metrics out of any training log: a grammar reads a line's shape once, a memo reads the next lines of that shape."""

from supervisor.sources.metrics.memo import Columns, MetricSample
from supervisor.sources.metrics.names import CANONICAL
from supervisor.sources.metrics.reader import (
    DrawnState,
    MetricReader,
    MetricRule,
    compile_rules,
    standing_states,
)

__all__ = [
    "CANONICAL",
    "Columns",
    "DrawnState",
    "MetricReader",
    "MetricRule",
    "MetricSample",
    "compile_rules",
    "standing_states",
]
