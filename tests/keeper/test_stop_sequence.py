"""The stop sequence, step by step, with a clock that a test moves; and what each request means when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.keeper.base.request_rules import Refused, RequestAction, judge
from supervisor.keeper.process.attempt import ASK_SHARE, KILL_WAIT_S, StopSequence
from supervisor.run import state as st
from supervisor.run.control import Request, RequestArgs, Requester
from supervisor.run.events import Outcome, Phase, RequestKind, StopStep, StopWhy
from supervisor.run.records import Decision, DecisionKind
from tests.keeper.fakes import verdict_of


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


def test_who_cannot_be_asked_gets_sigterm_and_all_of_the_grace() -> None:
    assert run_through(stop_sequence(), 0, 9.9, 10) == [StopStep.SIGTERM, None, StopStep.SIGKILL]


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
    "ranks that answer nothing",
    "each step of the stop sequence is bounded, and none is gone back to",
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


def test_the_dead_need_no_rung() -> None:
    assert stop_sequence(now=True).tick(1e9, alive=False) is None


DECISION = Decision(DecisionKind.RESTART, "why")
CONDITIONS: list[st.Condition] = [
    st.Preflight(),
    st.Launching(attempt=1),
    st.Running(attempt=1, phase=Phase.STEPPING),
    st.Stopping(attempt=1, why=StopWhy.REQUEST, by="kim"),
    st.Ended(attempt=1, exit_code=1),
    st.DiagnosedAs(attempt=1, verdict=verdict_of()),
    st.Backoff(attempt=1, until=0.0, decision=DECISION),
    st.HeldOpen(attempt=1, reason="why", decision=DECISION),
    st.Finished(outcome=Outcome.FAILED, exit_code=1, reason="why"),
]
LIVE = (st.Launching, st.Running, st.Stopping)


def request(kind: RequestKind, if_attempt: int | None = None) -> Request:
    who = Requester(uid=1, host="box", user="kim")
    return Request(id="r", kind=kind, by=who, if_attempt=if_attempt, args=RequestArgs(text="hello"))


def deed(kind: RequestKind, state: st.RunState, if_attempt: int | None = None) -> RequestAction | None:
    try:
        return judge(request(kind, if_attempt), state)
    except Refused as refused:
        reason = str(refused)
    assert reason
    assert "\n" not in reason
    return None


def state_in(condition: st.Condition, mode: str = "launched") -> st.RunState:
    attempts = () if isinstance(condition, st.Preflight) else (st.AttemptState(number=1, planned_t=0.0),)
    return st.RunState(mode=mode, condition=condition, attempts=attempts)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("kind", RequestKind)
def test_each_request_in_each_condition(condition: st.Condition, kind: RequestKind) -> None:
    got = deed(kind, state_in(condition))
    over = isinstance(condition, st.Finished)
    live = isinstance(condition, LIVE)
    match kind:
        case RequestKind.NOTE:
            assert got is RequestAction.NOTE
        case RequestKind.STOP:
            assert got is (None if over else RequestAction.STOP if live else RequestAction.END)
        case RequestKind.STOP_NOW:
            assert got is (None if over else RequestAction.STOP_NOW if live else RequestAction.END)
        case RequestKind.STACKS:
            assert got is (RequestAction.STACKS if isinstance(condition, st.Running | st.Stopping) else None)
        case RequestKind.PROFILE:
            assert got is (RequestAction.PROFILE if isinstance(condition, st.Running) else None)
        case RequestKind.START_NOW:  # of an attempt that has ended it cuts the reading of its logs short
            assert got is (RequestAction.START_NOW if isinstance(condition, st.Backoff | st.Ended) else None)
        case RequestKind.HOLD:
            assert got is (RequestAction.HOLD if isinstance(condition, st.Backoff) else None)
        case RequestKind.RESTART | RequestKind.RESTART_WITH:
            if isinstance(condition, st.Running | st.Launching):
                assert got is RequestAction.STOP_THEN_RESTART
            else:
                waits = isinstance(condition, st.Backoff | st.HeldOpen | st.Ended)
                assert got is (RequestAction.RESTART if waits else None)


@settings(deadline=None)
@given(some.sampled_from(CONDITIONS), some.sampled_from(list(RequestKind)), some.integers(2, 9))
@pytest.mark.fault(
    "processes", "a request that was meant for an earlier attempt", "it is answered as stale and does nothing"
)
def test_a_request_for_another_attempt_is_stale(
    condition: st.Condition, kind: RequestKind, other: int
) -> None:
    with pytest.raises(Refused, match="stale"):
        judge(request(kind, other), state_in(condition))


@settings(deadline=None)
@given(some.sampled_from(CONDITIONS), some.sampled_from(list(RequestKind)))
def test_nobody_acts_on_what_is_only_watched(condition: st.Condition, kind: RequestKind) -> None:
    assert deed(kind, state_in(condition, "observed")) in {None, RequestAction.NOTE, RequestAction.STACKS}


def test_a_note_says_something() -> None:
    empty = Request(id="r", kind=RequestKind.NOTE, by=Requester(uid=1, host="box"))
    with pytest.raises(Refused):
        judge(empty, st.RunState())
