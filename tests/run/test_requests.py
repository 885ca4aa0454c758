"""A stop or a restart on request: no failure, spends no budget, and stands on the timeline once."""

from __future__ import annotations

import pytest

from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.records import Decision, DecisionKind, FailureClass, Verdict
from supervisor.run.state import RunState
from supervisor.views.wording.kinds import end_of_request
from supervisor.views.wording.translate import english
from tests.keeper.fakes import stopped_verdict, verdict_of

BEGUN = [
    ev.LaunchIntended(t=1.0, attempt=1, argv=("x",), reason="first launch"),
    ev.AttemptStarted(t=1.0, attempt=1, pid=1, start_time=1.0),
    ev.Progress(t=2.0, attempt=1, step=10),
]


def ended(why: ev.StopWhy, by: str, verdict: Verdict | None = None) -> list[ev.Event]:
    return [
        *BEGUN,
        ev.StopIntended(t=5.0, attempt=1, why=why, by=by, grace_s=30.0),
        ev.AttemptEnded(t=6.0, attempt=1, exit_code=1, last_step=10),
        ev.Diagnosed(t=6.0, attempt=1, verdict=verdict or stopped_verdict()),
    ]


def tones(state: RunState) -> set[str]:
    return {moment.tone for moment in state.timeline}


@pytest.mark.parametrize(
    ("why", "by", "text"),
    [
        (ev.StopWhy.REQUEST, "ada", "stopped by ada"),
        (ev.StopWhy.RESTART, "ada", "restarted by ada"),
        (ev.StopWhy.SIGNAL, "Ctrl-C", "stopped by Ctrl-C"),
        (ev.StopWhy.REQUEUE, "SIGUSR1", "stopped by SIGUSR1"),
    ],
)
def test_a_stop_is_no_failure(why: ev.StopWhy, by: str, text: str) -> None:
    decision = Decision(DecisionKind.STOP, "stopped on request", exit_code=5)
    state = replay(
        [
            *ended(why, by),
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
    state = replay(ended(why, "keeper", verdict_of(FailureClass.HANG)))
    (attempt,) = state.attempts
    assert not attempt.ended_on_request
    assert attempt.failure is FailureClass.HANG
    assert "bad" in tones(state)


def test_a_failure_before_the_stop_stays_one() -> None:
    oom = verdict_of(FailureClass.CUDA_OOM)
    state = replay(ended(ev.StopWhy.REQUEST, "ada", oom))
    assert state.attempts[0].failure is FailureClass.CUDA_OOM
    assert end_of_request(state.attempts[0]) == ""
