"""What policy does about each class of failure, and when its budgets are spent."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import ClassOverride, RetrySettings, TrialSettings
from supervisor.policy import RULES, PolicyInput, decide
from supervisor.run.events import StopWhy
from supervisor.run.records import DecisionKind, FailureClass, Reason
from supervisor.run.state import AttemptState
from tests.policy.cases import (
    TRAINER,
    F,
    ended,
    one,
    restarted,
    stop_by,
)


def test_every_class_has_a_rule_and_every_rule_a_word_for_the_person() -> None:
    assert set(RULES) == set(FailureClass)
    assert all(rule.advice_if_not_restarted for rule in RULES.values())


def test_a_trial_ends_with_its_steps_and_is_never_restarted() -> None:
    trial = TrialSettings(steps=20)
    stopped = structs.replace(ended(F.TERMINATED, Reason.USER, last=21), stop=stop_by(StopWhy.TRIAL))
    done = one(stopped, trial=trial, interactive=True)
    assert (done.kind, done.exit_code) == (DecisionKind.SUCCEED, 0)
    assert done.reason == "trial of 20 steps: stopped at step 21"
    late = one(structs.replace(stopped, last_step=7), trial=trial)
    assert (late.kind, late.exit_code) == (DecisionKind.FAIL, 1)
    assert late.reason == "trial of 20 steps: 7 seen within 1800 s"
    crashed = one(ended(F.NCCL_ERROR, last=7, saved=(5,)), trial=trial, interactive=True)
    assert (crashed.kind, crashed.exit_code) == (DecisionKind.FAIL, 1)
    assert one(ended(F.NCCL_ERROR, last=7, saved=(5,))).kind is DecisionKind.RESTART
    by_itself = one(ended(None, exit_code=0, last=20), trial=trial)
    assert by_itself.reason == "trial of 20 steps: finished at step 20"


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


def test_an_abort_at_exit_after_all_work_is_success() -> None:
    attempt = ended(F.WORKER_CRASH, Reason.AT_EXIT, last=30)
    assert one(attempt, total_steps=30).exit_code == 0
    assert one(attempt, final_checkpoint=True).kind is DecisionKind.SUCCEED
    early = one(attempt, total_steps=40)
    assert (early.kind, early.exit_code) == (DecisionKind.FAIL, 1)
    assert one(attempt).exit_code == 1


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


def test_a_lost_exit_status_is_lost_unless_the_work_was_done() -> None:
    assert one(ended(None, exit_code=None, last=5)).exit_code == 6
    assert one(ended(F.UNKNOWN, exit_code=None, last=5), total_steps=5).exit_code == 0


def test_back_off() -> None:
    crash = ended(F.WORKER_CRASH, Reason.SIGNAL, last=4)
    assert one(crash).delay_s == 1.0
    assert one(crash, interactive=True).delay_s == 10.0
    oom = ended(F.CUDA_OOM, last=4, batch=BatchSpec(8, 1, 1))
    assert one(oom, interactive=True).delay_s == 10.0
    assert one(oom, interactive=True, watched=True).delay_s == 30.0, "it is read before it is let continue"
    assert one(crash, interactive=True, watched=True).delay_s == 10.0
    assert one(oom, watched=True).delay_s == 0.0
    override = RetrySettings(overrides=(ClassOverride("worker_crash", delay_s=3.5),))
    assert one(crash, retry=override).delay_s == 3.5
