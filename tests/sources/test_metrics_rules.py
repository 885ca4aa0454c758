"""A user's own rules come before the grammar, and none can hang."""

from __future__ import annotations

import time

import pytest

from supervisor.sources.metrics import MetricReader
from supervisor.text.patterns import compile_linear
from tests.conftest import not_none


def test_rules_of_the_user_come_first() -> None:
    rules = {"loss": r"my number is ([\d.]+)", "sparkle": r"sparkle:([-\d.]+)"}
    reader = MetricReader([(name, compile_linear(regex)) for name, regex in rules.items()])
    for _ in range(2):
        sample = not_none(reader.feed("step 3 loss 9.0 my number is 1.5 sparkle:-2"))
        assert sample.loss == 1.5
        assert sample.other["sparkle"] == -2.0


def test_no_rule_of_a_user_can_hang_on_a_line() -> None:
    # Under Python's own engine this line would take longer than the universe has.
    reader = MetricReader([("x", compile_linear(r"(a+)+b"))])
    start = time.process_time()
    for _ in range(20):
        assert reader.feed("a" * 4000) is None
    assert time.process_time() - start < 1.0
    for pattern in (r"(?<=loss )(\d+)", r"(\d+) \1"):
        with pytest.raises(ValueError, match="could hang"):
            compile_linear(pattern)
