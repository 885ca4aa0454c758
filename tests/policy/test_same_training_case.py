"""What a restart's two tables say of themselves: how often was logged, where it resumed, which changes could be half made."""

from __future__ import annotations

import random

import pytest

from supervisor.policy.same_training.case import Case, Restart
from supervisor.policy.same_training.paired import _lag
from supervisor.policy.same_training.series import Table


def table(*steps: int) -> Table:
    return {step: {"loss": float(step)} for step in steps}


@pytest.mark.parametrize(
    ("steps", "every"),
    [((7,), 1), ((7, 8), 1), ((0, 5), 5), ((0, 5, 10, 11), 5), ((0, 2, 4), 2)],
)
def test_how_many_steps_lie_between_two_logged_ones(steps: tuple[int, ...], every: int) -> None:
    case = Case(table(*steps), table(20), Restart())
    assert case.every == every
    assert case.at == 20 - every


@pytest.mark.parametrize(
    ("known", "at"), [(None, 90), (79, 90), (80, 80), (85, 85), (99, 99), (100, 90), (101, 90)]
)
def test_the_checkpoint_that_is_known_counts_where_it_lies_shortly_before(known: int | None, at: int) -> None:
    case = Case(table(0, 10, 20), table(100, 110), Restart(resumes_at=known))
    assert case.at == at


def test_steps_of_both_and_new_ones() -> None:
    case = Case(table(1, 2, 3), table(3, 2, 4), Restart())
    assert (case.begin, case.last, case.start) == (1, 3, 2)
    assert case.twice == [2, 3]
    assert case.new == [4]
    assert case.pairs("loss") == [(2, 2.0, 2.0), (3, 3.0, 3.0)]
    assert case.pairs("lr") == []


def test_parts_of_a_planned_change_that_may_not_have_been_made() -> None:
    assert Case(table(1), table(2), Restart()).half_changes() == []
    same = Restart(micro=(8, 8), accumulation=(2, 2), world=(2, 2))
    assert Case(table(1), table(2), same).half_changes() == []
    halved = Restart(micro=(8, 4), accumulation=(1, 2), world=(2, 2))
    assert Case(table(1), table(2), halved).half_changes() == [0.5, 2.0, 1.0]


@pytest.mark.parametrize(
    ("behind", "every", "found"),
    [(0, 1, None), (1, 1, None), (2, 1, 2), (30, 1, 30), (4, 2, 4), (2, 2, None)],
)
def test_by_how_many_steps_the_losses_lie_behind(behind: int, every: int, found: int | None) -> None:
    def loss(step: int) -> dict[str, float]:
        return {"loss": 2 + random.Random(step).random()}

    before = {step: loss(step) for step in range(0, 101 * every, every)}
    start = 100 * every
    after = {step: loss(step - behind) for step in range(start, start + 40 * every, every)}
    # The steps before and after are compared with what lay `behind` steps earlier, as far as that was logged.
    before |= {step: loss(step) for step in range(start, start + 40 * every, every)}
    lag = _lag(Case(before, after, Restart()))
    assert (lag[0] if lag else None) == found
