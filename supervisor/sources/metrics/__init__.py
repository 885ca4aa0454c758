"""Metrics out of any training log: a grammar reads a line's shape once, a plan reads the next lines of that shape."""

from supervisor.sources.metrics.names import CANONICAL
from supervisor.sources.metrics.reader import MetricReader
from supervisor.sources.metrics.rules import MetricRule, compile_rules
from supervisor.sources.metrics.samples import FoundSample, MetricSample

__all__ = ["CANONICAL", "FoundSample", "MetricReader", "MetricRule", "MetricSample", "compile_rules"]
