"""A stop or a restart on request: no failure, spends no budget, and stands on the timeline once."""

from __future__ import annotations

import pytest

from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange, Verdict
from supervisor.run.state import RunState
from supervisor.views.wording.kinds import end_of_request
from supervisor.views.wording.translate import english
from tests.keeper.fakes import stopped_verdict, verdict_of

RESTART = Decision(DecisionKind.RESTART, "ada asked for it", change=SpecChange())


def begun(number: int, t: float, reason: str = "first launch") -> list[ev.Event]:
    return [
        ev.LaunchIntended(t=t, attempt=number, argv=("x",), reason=reason),
        ev.AttemptStarted(t=t, attempt=number, pid=number, start_time=t),
        ev.Progress(t=t + 1, attempt=number, step=number * 10),
    ]


def ended(number: int, t: float, why: ev.StopWhy, by: str, verdict: Verdict | None = None) -> list[ev.Event]:
    return [
        ev.StopIntended(t=t, attempt=number, why=why, by=by, grace_s=30.0),
        ev.AttemptEnded(t=t + 1, attempt=number, exit_code=1, last_step=number * 10),
        ev.Diagnosed(t=t + 1, attempt=number, verdict=verdict or stopped_verdict()),
    ]


def asked(kind: ev.RequestKind, t: float) -> ev.Event:
    return ev.RequestDone(t=t, request_id=f"{kind}{t}", request=kind, by="ada")


def restarted() -> list[ev.Event]:
    return [
        *begun(1, 1.0),
        ev.Decided(t=5.0, attempt=1, decision=RESTART, by="ada"),
        *ended(1, 5.0, ev.StopWhy.RESTART, "ada")[:1],
        asked(ev.RequestKind.RESTART, 5.1),
        *ended(1, 5.0, ev.StopWhy.RESTART, "ada")[1:],
        ev.BackoffStarted(t=6.0, attempt=1, until=6.0, delay_s=0.0),
        *begun(2, 7.0, RESTART.reason),
    ]


def test_the_step_after_a_requested_restart_came_after_no_failure() -> None:
    step = ev.Recovered(t=9.0, attempt=2, after=1, total_s=4.0)
    assert (
        english.moment(replay([*restarted(), step]).timeline[-1]) == "the next step came 4.0 s after the stop"
    )


def tones(state: RunState) -> set[str]:
    return {moment.tone for moment in state.timeline}


def test_a_requested_restart_stands_there_once_and_in_no_colour() -> None:
    state = replay(restarted())
    assert [english.moment(m) for m in state.timeline] == [
        "attempt 1: first launch",
        "ada asked: restart",
        "attempt 1 ended: restarted by ada",
        "attempt 2: as asked",
    ]
    assert tones(state) == {"info"}
    assert state.attempts[0].failure is None


@pytest.mark.parametrize(
    ("why", "by", "text"),
    [
        (ev.StopWhy.REQUEST, "ada", "stopped by ada"),
        (ev.StopWhy.SIGNAL, "Ctrl-C", "stopped by Ctrl-C"),
        (ev.StopWhy.REQUEUE, "SIGUSR1", "stopped by SIGUSR1"),
    ],
)
def test_a_stop_is_no_failure(why: ev.StopWhy, by: str, text: str) -> None:
    decision = Decision(DecisionKind.STOP, "stopped on request", exit_code=5)
    state = replay(
        [
            *begun(1, 1.0),
            *ended(1, 5.0, why, by),
            ev.Decided(t=6.0, attempt=1, decision=decision),
            ev.RunEnded(t=6.0, outcome=ev.Outcome.STOPPED, exit_code=5, reason=decision.reason),
        ]
    )
    (attempt,) = state.attempts
    assert attempt.ended_on_request
    assert end_of_request(attempt) == text
    assert attempt.failure is None
    assert tones(state) == {"info"}
    texts = [english.moment(m) for m in state.timeline]
    assert f"attempt 1 ended: {text}" in texts
    assert sum("stopped on request" in one for one in texts) == 1


@pytest.mark.parametrize("why", [ev.StopWhy.HANG, ev.StopWhy.RANK_DIED])
def test_an_end_that_follows_a_failure_is_not_on_request(why: ev.StopWhy) -> None:
    state = replay([*begun(1, 1.0), *ended(1, 5.0, why, "keeper", verdict_of(FailureClass.HANG))])
    (attempt,) = state.attempts
    assert not attempt.ended_on_request
    assert attempt.failure is FailureClass.HANG
    assert "bad" in tones(state)


def test_a_failure_before_the_stop_stays_one() -> None:
    oom = verdict_of(FailureClass.CUDA_OOM)
    state = replay([*begun(1, 1.0), *ended(1, 5.0, ev.StopWhy.REQUEST, "ada", oom)])
    assert state.attempts[0].failure is FailureClass.CUDA_OOM
    assert end_of_request(state.attempts[0]) == ""
