"""No line makes the reader raise, hang, or take a look-alike for a metric."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader
from supervisor.sources.metrics.metric_reader import MAX_LINE
from supervisor.sources.metrics.names import CANONICAL


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120), st.text(alphabet="0123456789:=/|.,-[](){}%'\" estploraing", max_size=120)
    )
)
def test_nothing_makes_it_raise(line: str) -> None:
    reader = MetricReader()
    for _ in range(2):
        sample = reader.feed(line)
        if sample is not None:
            assert set(sample.values) <= set(CANONICAL)


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "1 ",
        "1/",
        "1,",
        "1:",
        "a=1 ",
        "[",
        "1d ",
        "1m1m",
        "━",
        "|",
        "a",
        "a.",
        "100%|",
        "loss ",
        "(",
        "1 of ",
        "1.5e-3,",
        "-1",
        "a/b/",
        ".",
    ],
)
def test_no_line_takes_long_whatever_it_is_made_of(piece: str) -> None:
    # A line of 8192 characters takes some 100 ms at worst; patterns that backtrack would take minutes.
    line = (piece * MAX_LINE)[:MAX_LINE]
    start = time.process_time()
    MetricReader().feed(line)
    assert time.process_time() - start < 2.0
