"""A few of `make same-training`: small real trainings, resumed wrongly and rightly, read by stoker's own reader and judged."""

from __future__ import annotations

import pytest

from bench.resumed_trainings import DEVELOPED_ON, FAULTS, UNSEEN, judged
from supervisor.run.records import Sameness


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_mistake_is_named(fault: str) -> None:
    found = judged(7, fault, DEVELOPED_ON)
    assert found.difference is not None, found.text
    assert found.difference.value in FAULTS[fault].split(" or ")


@pytest.mark.parametrize("fault", UNSEEN)
def test_what_no_value_shows_is_not_called_the_same(fault: str) -> None:
    assert judged(7, fault, DEVELOPED_ON).result is Sameness.UNKNOWN


@pytest.mark.parametrize("number", [0, 1, 2, 3, 8])
def test_an_honest_restart_is_not_accused(number: int) -> None:
    assert judged(number, "", DEVELOPED_ON).result is not Sameness.DIFFERS
