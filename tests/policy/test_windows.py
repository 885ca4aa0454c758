"""Since when restarts count, and which lines and steps a restart has: tables of attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from supervisor.job.spec import Knobs
from supervisor.policy import PolicyInput, restarts_since_progress
from supervisor.policy.history import is_resume_known
from supervisor.run.records import Decision, DecisionKind
from supervisor.run.state import AttemptState

AGAIN = Decision(DecisionKind.RESTART, "again")
HOLD = Decision(DecisionKind.HOLD, "held")


def after(
    step: int | None = None, *saved: int, decision: Decision | None = AGAIN, by: str = "policy", **values: Any
) -> AttemptState:
    made = AttemptState(number=1, planned_t=0.0, last_step=step, checkpoint_steps=saved, **values)
    return structs.replace(made, decision=decision, decided_by=by)


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        ([after(5), after()], [0]),
        ([after(5), after(5), after()], [0, 1]),
        ([after(5), after(6), after()], [1]),
        ([after(5), after(4), after(4), after()], [0, 1, 2]),
        ([after(0), after()], [0]),
        ([after(), after(), after()], [0, 1]),
        ([after(), after(0), after()], [1]),
        ([after(5), after(5, 5), after()], [1]),
        ([after(5, 5), after(5, 5), after()], [0, 1]),
        ([after(5), after(5, by="kim"), after(5), after()], [2]),
        ([after(5), after(5, decision=HOLD), after()], [0]),
        ([after(5), after(5, decision=None), after()], [0]),
        ([after(5)], []),
    ],
)
def test_restarts_count_since_the_last_progress(attempts: list[AttemptState], counted: list[int]) -> None:
    history = PolicyInput(tuple(attempts))
    found = restarts_since_progress(history)
    assert [id(one) for one in found] == [id(attempts[at]) for at in counted]


@pytest.mark.parametrize(
    ("knobs", "path", "number", "known"),
    [
        (Knobs(), "c/1", 1, False),
        (Knobs(self_resuming=True), None, None, True),
        (Knobs(resume="--resume"), None, None, True),  # a person named it
        (Knobs(resume="--resume", resumes="read from the source"), None, None, False),
        (Knobs(resume="--resume", resumes="read from the source"), "c/1", None, True),
        (Knobs(resume_path="--ckpt"), None, None, False),
        (Knobs(resume_path="--ckpt"), "c/1", None, True),
        (Knobs(resume_step="--step"), "c/1", None, False),
        (Knobs(resume_step="--step"), "c/1", 1, True),
        (Knobs(resume_step="--step"), None, 1, False),
    ],
)
def test_whether_a_restart_goes_on(knobs: Knobs, path: str | None, number: int | None, known: bool) -> None:
    assert is_resume_known(knobs, path, number) is known
    history = PolicyInput((after(5),), knobs=knobs, newest_checkpoint=path, newest_number=number)
    assert history.resume_known is known
    assert replace(history, not_now="the file is being written").resume_known is False
