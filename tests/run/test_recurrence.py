"""The same failure again, in other attempts."""

from __future__ import annotations

from supervisor.run import events as ev
from supervisor.run.failure_history import recurrence_lines, same_failure
from supervisor.run.fold import replay
from supervisor.run.records import Action, FailureClass, Verdict

MARK = "0123456789abcdef"


def test_other_attempts_with_the_same_fingerprint() -> None:
    of = {"reason": None, "confidence": 0.9, "rank": 0, "ranks": (0,), "node": None, "title": "x", "cause": None, "consequences": (), "advice": ()}  # fmt: skip
    facts: list[ev.Event] = []
    for attempt, mark in enumerate((MARK, "f" * 16, MARK), start=1):
        verdict = Verdict(failure=FailureClass.CODE_ERROR, action=Action.NONE, fingerprint=mark, **of)  # type: ignore[arg-type]
        facts.append(ev.LaunchIntended(t=float(attempt), attempt=attempt, reason="x", argv=("x",)))
        facts.append(ev.Diagnosed(t=5.0, attempt=attempt, verdict=verdict))
    state = replay(facts)
    assert same_failure(state, MARK, 3) == (1,)
    assert same_failure(state, MARK, 2) == (1, 3)
    assert same_failure(state, "f" * 16, 2) == ()
    assert same_failure(state, "", 2) == ()
    assert recurrence_lines(()) == []
    assert recurrence_lines((1, 3)) == ["the same failure as attempts 1, 3"]
