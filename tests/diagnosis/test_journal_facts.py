"""What the journals say of an attempt, as evidence: each fact from its own fields."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.run import events as ev
from supervisor.run.state import AttemptState, RunState


def attempt(number: int = 3, **known: Any) -> AttemptState:
    return AttemptState(number=number, planned_t=0.0, **known)


def stop(why: ev.StopWhy, t: float = 5.0) -> ev.StopIntended:
    return ev.StopIntended(t=t, attempt=3, why=why, by="kim", grace_s=5.0)


def facts(*views: AttemptState, earlier: tuple[AttemptState, ...] = (), **state: Any) -> JobEvidence:
    run = RunState(attempts=(*earlier, views[0]), **state)
    return with_journal_facts(JobEvidence((), launcher_exit=9), [(run, view) for view in views])


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [((0,), 0), ((0, 3), 3), ((None, 0), 0), ((None,), 9), ((7, 3), 7)],
)
def test_the_launchers_exit_code_is_the_first_that_is_not_0(
    codes: tuple[int | None, ...], exit_code: int
) -> None:
    assert facts(*(attempt(exit_code=code) for code in codes)).launcher_exit == exit_code


@pytest.mark.parametrize(
    ("known", "signal"),
    [
        ({"exit_code": -9}, 9),
        ({"exit_code": 0}, None),
        ({"exit_code": 1}, None),
        ({"exit_code": -15, "stop": stop(ev.StopWhy.REQUEST), "ended_t": 4.9}, 15),
        ({"exit_code": -15, "stop": stop(ev.StopWhy.REQUEST), "ended_t": 5.0}, None),
        ({"exit_code": -15, "stop": stop(ev.StopWhy.REQUEST)}, None),
    ],
)
def test_a_signal_that_ended_the_launcher_is_stokers_from_its_stop_on(
    known: dict[str, Any], signal: int | None
) -> None:
    assert facts(attempt(**known)).launcher_signal == signal


@pytest.mark.parametrize(
    ("why", "ours", "ended_for"),
    [
        (ev.StopWhy.REQUEST, "request", None),
        (ev.StopWhy.HANG, None, "hang"),
        (ev.StopWhy.RANK_DIED, None, "rank_died"),
    ],
)
def test_a_stop_is_the_reason_or_follows_from_one(
    why: ev.StopWhy, ours: str | None, ended_for: str | None
) -> None:
    found = facts(attempt(), attempt(stop=stop(why)))
    assert (found.stop_reason, found.ended_for) == (ours, ended_for)


@pytest.mark.parametrize(
    ("view", "earlier", "found"),
    [
        (attempt(), (attempt(1, last_step=30), attempt(2, last_step=40)), (2, 40)),
        (attempt(), (attempt(1, last_step=40), attempt(2, last_step=30)), (1, 40)),
        (attempt(resumed_step=50), (attempt(1, last_step=40),), (1, 50)),
        (attempt(), (attempt(1, last_step=0),), (1, 0)),
        (attempt(last_step=3), (attempt(1, last_step=40),), None),
        (attempt(), (attempt(1),), None),
        (attempt(), (attempt(4, last_step=40),), None),
    ],
)
def test_an_attempt_without_a_step_is_held_against_the_farthest_before(
    view: AttemptState, earlier: tuple[AttemptState, ...], found: tuple[int, int] | None
) -> None:
    assert facts(view, earlier=earlier).earlier_step == found


def test_kills_for_memory_are_0_only_if_every_node_says_so() -> None:
    def kills(*counts: int | None) -> int | None:
        return facts(*(attempt(memory_kills=count) for count in counts)).machine.cgroup_oom_kills

    assert [kills(0), kills(0, None), kills(0, 0), kills(2, None), kills(2, 1)] == [0, None, 0, 2, 3]


def test_the_farthest_node_has_the_last_step() -> None:
    assert facts(attempt(last_step=4), attempt(last_step=6), attempt()).last_step == 6
    assert facts(attempt()).last_step is None


def test_an_attempt_stopped_for_not_resuming_says_where_it_began() -> None:
    missed = ev.ResumeMissed(t=1.0, attempt=3, step=200, began=0)
    text = "did not resume: began at step 0, not after checkpoint 200"
    assert facts(attempt(missed=missed, stop=stop(ev.StopWhy.NOT_RESUMED))).not_resumed == text
    assert facts(attempt(missed=missed, stop=stop(ev.StopWhy.REQUEST))).not_resumed == ""
    assert facts(attempt(missed=missed)).not_resumed == ""


@pytest.mark.parametrize(
    ("number", "final", "by_time", "is_final", "earlier"),
    [
        (3, True, False, True, (1, 60)),
        (3, False, False, False, (1, 60)),
        (2, True, False, False, (1, 60)),
        (3, True, True, True, (1, 40)),
    ],
)
def test_a_checkpoint_counts_as_final_for_its_own_attempt(
    number: int, final: bool, by_time: bool, is_final: bool, earlier: tuple[int, int]
) -> None:
    """One whose step was only told by the time it was written says nothing of how far the run came."""
    saved = ev.CheckpointCommitted(
        t=1.0, attempt=number, step=60, path="/c", final=final, step_by_time=by_time
    )
    found = facts(attempt(), earlier=(attempt(1, last_step=40),), checkpoint=saved)
    assert (found.final_checkpoint, found.earlier_step) == (is_final, earlier)


def test_without_a_journal_the_evidence_is_as_it_was() -> None:
    job = JobEvidence((), exit_codes={5: 1})
    assert with_journal_facts(job, []) == job
