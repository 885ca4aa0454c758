"""A few of `make same-training`: small real trainings, resumed wrongly and rightly, read by stoker's own reader and judged."""

from __future__ import annotations

import pytest
import torch

from bench.resumed_trainings import DEVELOPED_ON, FAULTS, two_attempts
from bench.resumed_trainings import table as table_of
from supervisor.policy.same_training.judge import Judgement, judge
from supervisor.run.records import Sameness


def judged(number: int, fault: str) -> Judgement:
    torch.set_num_threads(1)
    setup = DEVELOPED_ON.faulty(fault, number) if fault else DEVELOPED_ON.honest(number)
    before, after = two_attempts(setup, fault)
    return judge(table_of(before), table_of(after), setup.restart())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_mistake_is_named(fault: str) -> None:
    found = judged(7, fault)
    assert found.difference is not None, found.text
    assert found.difference.value == FAULTS[fault]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 6, 9])
def test_an_honest_restart_is_not_accused(number: int) -> None:
    found = judged(number, "")
    assert found.result is not Sameness.DIFFERS
    assert (found.result is Sameness.UNKNOWN) == (found.twice == 0), found.text
