"""The stop sequence, step by step, with a clock that a test moves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.keeper.process.attempt import ASK_SHARE, KILL_WAIT_S, StopSequence
from supervisor.run.events import StopStep, StopWhy


def stop_sequence(*, can_ask: bool = False, now: bool = False, grace_s: float = 10.0) -> StopSequence:
    return StopSequence(StopWhy.REQUEST, "kim", grace_s, started=100.0, can_ask=can_ask, now=now)


def run_through(sequence: StopSequence, *times: float) -> list[StopStep | None]:
    return [sequence.tick(100.0 + t, alive=True) for t in times]


def test_every_rung_in_its_order() -> None:
    sequence = stop_sequence(can_ask=True)
    assert run_through(sequence, 0, 0, 10 * ASK_SHARE - 0.1) == [StopStep.ASK, None, None]
    assert run_through(sequence, 10 * ASK_SHARE, 9.9) == [StopStep.SIGTERM, None]
    assert run_through(sequence, 10, 10.4) == [StopStep.SIGKILL, None]
    assert run_through(sequence, 10.5, 10.5 + KILL_WAIT_S - 0.1) == [StopStep.SWEEP, None]
    assert run_through(sequence, 10.5 + KILL_WAIT_S, 1e6) == [StopStep.SURVIVORS, None]


@pytest.mark.parametrize("waited", [None, StopStep.ASK, StopStep.SIGTERM])
def test_now_is_sigkill_from_any_rung_before_it(waited: StopStep | None) -> None:
    sequence = stop_sequence(can_ask=waited is StopStep.ASK)
    if waited is not None:
        assert run_through(sequence, 0) == [waited]
    sequence.hurry()
    assert run_through(sequence, 0.1) == [StopStep.SIGKILL]


@settings(deadline=None)
@given(
    some.lists(some.floats(0, 5), max_size=40),
    some.booleans(),
    some.booleans(),
    some.floats(0, 60),
    some.integers(0, 40),
)
@pytest.mark.fault(
    "processes",
    "ranks that react to no signal",
    "each step of the stop sequence is bounded and happens once",
)
def test_rungs_never_go_down_and_end_within_a_bounded_time(
    steps: list[float], can_ask: bool, now: bool, grace_s: float, hurried_at: int
) -> None:
    sequence = stop_sequence(can_ask=can_ask, now=now, grace_s=grace_s)
    order = list(StopStep)
    t, taken = 0.0, []
    for index, step in enumerate([*steps, *[1.0] * 80]):
        if index == hurried_at:
            sequence.hurry()
        t += step
        newest = sequence.tick(100.0 + t, alive=True)
        taken += [newest] if newest is not None else []
    assert [order.index(r) for r in taken] == sorted({order.index(r) for r in taken})
    assert taken[-1] is StopStep.SURVIVORS
    assert StopStep.SIGKILL in taken
