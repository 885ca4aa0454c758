"""What policy does about each class of failure, and when its budgets are spent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import ClassOverride, RetrySettings
from supervisor.policy import RULES, PolicyInput, budget_text, decide
from supervisor.policy.decide import counted_retries
from supervisor.policy.rule_words import ASKED_FOR
from supervisor.run.events import StopWhy
from supervisor.run.records import DecisionKind, FailureClass, Reason
from supervisor.run.state import AttemptState
from tests.policy.cases import (
    TRAINER,
    F,
    ended,
    one,
    restarted,
)


def test_every_class_has_a_rule_and_every_rule_a_word_for_the_person() -> None:
    assert set(RULES) == set(FailureClass)
    assert all(rule.advice_if_not_restarted for rule in RULES.values())


def test_the_budget_is_spent_without_progress_and_comes_back_with_it() -> None:
    first = ended(F.WORKER_CRASH, Reason.SIGNAL, last=10)
    retry = RetrySettings(max_retries=2)
    attempts: tuple[AttemptState, ...] = ()
    for _ in range(2):
        decision = decide(PolicyInput(attempts=(*attempts, first), retry=retry, knobs=TRAINER))
        assert decision.kind is DecisionKind.RESTART
        attempts = (*attempts, restarted(first, decision))
    spent = decide(PolicyInput(attempts=(*attempts, first), retry=retry, knobs=TRAINER))
    assert (spent.kind, spent.exit_code) == (DecisionKind.GIVE_UP, 4)
    further = structs.replace(first, last_step=11)
    assert decide(PolicyInput((*attempts, further), retry=retry, knobs=TRAINER)).kind is DecisionKind.RESTART
    saved = structs.replace(first, checkpoint_steps=(10,))
    assert decide(PolicyInput((*attempts, saved), retry=retry, knobs=TRAINER)).kind is DecisionKind.RESTART
    by_hand = (*attempts[:-1], structs.replace(attempts[-1], decided_by="kim"))
    assert decide(PolicyInput((*by_hand, first), retry=retry, knobs=TRAINER)).kind is DecisionKind.RESTART


def test_an_unknown_cause_restarts_once_and_only_after_progress() -> None:
    for failure, reason in ((F.UNKNOWN, None), (F.WORKER_CRASH, Reason.SILENT)):
        assert one(ended(failure, reason)).kind is DecisionKind.FAIL
        now = ended(failure, reason, last=10)
        first = one(now)
        assert first.kind is DecisionKind.RESTART
        second = decide(PolicyInput(attempts=(restarted(now, first), now), knobs=TRAINER))
        assert second.kind is DecisionKind.GIVE_UP


def test_exit_0_without_a_step_is_not_reported_as_plain_success() -> None:
    title = "Ended without a step: attempt 1 had reached step 30 of 90"
    now = ended(F.UNKNOWN, Reason.NO_STEP, exit_code=0)
    assert now.verdict is not None
    now = structs.replace(now, verdict=replace(now.verdict, title=title))
    decision = one(now, total_steps=90)
    assert (decision.kind, decision.exit_code) == (DecisionKind.FAIL, 1)
    assert decision.reason == f"exit code 0, but: {title}"
    assert one(now, total_steps=90, interactive=True).kind is DecisionKind.HOLD
    before = ended(F.CUDA_OOM, last=30)
    unsure = decide(PolicyInput(attempts=(before, ended(F.HEALTHY, exit_code=0)), knobs=TRAINER))
    assert unsure.kind is DecisionKind.SUCCEED
    assert unsure.reason == "finished without a step"


def test_back_off() -> None:
    crash = ended(F.WORKER_CRASH, Reason.SIGNAL, last=4)
    assert one(crash).delay_s == 1.0
    assert one(crash, jitter=0.5).delay_s == 1.125
    delays: list[float] = []
    past: list[AttemptState] = []
    for _ in range(8):
        decision = decide(PolicyInput((*past, crash), retry=RetrySettings(max_retries=20), knobs=TRAINER))
        delays.append(decision.delay_s)
        past.append(restarted(crash, decision))
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert one(crash, interactive=True).delay_s == 10.0
    oom = ended(F.CUDA_OOM, last=4, batch=BatchSpec(8, 1, 1))
    assert one(oom, interactive=True).delay_s == 10.0
    assert one(oom, interactive=True, watched=True).delay_s == 30.0, "it is read before it is let continue"
    assert one(crash, interactive=True, watched=True).delay_s == 10.0
    assert one(oom, watched=True).delay_s == 0.0
    override = RetrySettings(overrides=(ClassOverride("worker_crash", delay_s=3.5),))
    assert one(crash, retry=override).delay_s == 3.5


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), "budget, without progress: 1 of 3 (--max-retries)"),
        (ended(F.HANG, last=4), "budget, without progress: 1 of 1 for hang; 1 of 3 (--max-retries)"),
        (
            ended(F.FD_LIMIT),
            "budget, without progress: 1 of 1 for fd_limit; not counted by --max-retries, for the job changes",
        ),
        (ended(F.WORKER_CRASH, last=4, stop=StopWhy.RESTART), ASKED_FOR),
        (ended(None, last=4, stop=StopWhy.RESTART), None),
        (ended(F.CODE_ERROR, last=4), None),
    ],
)
def test_a_restart_says_what_it_costs(now: AttemptState, text: str | None) -> None:
    assert budget_text(PolicyInput((now,), knobs=TRAINER), one(now)) == text


def test_only_what_was_done_since_the_last_progress_is_counted() -> None:
    crash = ended(F.WORKER_CRASH, Reason.SIGNAL, last=4)
    again = restarted(crash, one(crash))
    for past, counted in [
        ((again, again), 2),
        ((again, structs.replace(again, last_step=5)), 1),
        ((again, structs.replace(again, checkpoint_steps=(0,))), 1),
        ((again, structs.replace(again, decided_by="kim"), again), 1),
        ((structs.replace(again, first_step=None, last_step=None), structs.replace(again, last_step=0)), 1),
    ]:
        history = PolicyInput((*past, structs.replace(crash, last_step=None)))
        assert len(counted_retries(history)) == counted
