"""No line makes the reader raise, hang, or take a look-alike for a metric."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader
from supervisor.sources.metrics.metric_reader import MAX_LINE
from supervisor.sources.metrics.names import CANONICAL
from tests.sources.metric_lines import values


@pytest.mark.parametrize(
    "line",
    [
        "The loss went down by 3.5 after 100 steps.",
        "Resuming from step 1200 (epoch 3, loss 2.41)",
        "Namespace(batch_size=32, epochs=10, lr=0.001, loss='l1', seed=42)",
        "GET /metrics?step=100&loss=0.1 HTTP/1.1 200",
        "packet loss: 0.0%, rtt 0.3 ms",
        "https://example.org/runs?step=3&loss=2.5",
        "tests/test_loss.py::test_step[loss=0.5-lr=0.1] PASSED",
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:07<00:07,  3.61s/it]",
        "RuntimeError: loss = nan is not finite, step = 1200",
        "Epoch 00012: reducing learning rate of group 0 to 5.0000e-05.",
        "0.1 0.2 0.3",
        "1, 2, 3",
    ],
)
def test_what_only_looks_like_a_metric_gives_nothing(line: str) -> None:
    found = values(line)
    assert not {"loss", "val_loss", "lr", "step", "step_time_s"} & set(found)


@settings(max_examples=300, deadline=None)
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
