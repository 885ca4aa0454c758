"""Whether a restart may go on by itself where the script wants a checkpoint's path, and what a person is told else."""

from __future__ import annotations

from dataclasses import replace

from supervisor.job.spec import Knobs, RetrySettings
from supervisor.policy import PolicyInput, decide
from supervisor.run.records import DecisionKind, FailureClass
from tests.unit.policy_cases import ended

CRASH = ended(FailureClass.WORKER_CRASH, last=18)
BY_PATH = Knobs(resume_path="--resume_from_checkpoint")


def test_a_flag_and_a_checkpoint_for_it_make_a_restart() -> None:
    known = PolicyInput(attempts=(CRASH,), knobs=BY_PATH, newest_checkpoint="/out/checkpoint-15")
    decision = decide(known)
    assert decision.kind is DecisionKind.RESTART
    assert "/out/checkpoint-15 (--resume_from_checkpoint)" in decision.reason
    assert decision.change is not None
    assert not decision.change.from_scratch
    assert not decision.change.set_args, "a plain restart: --max-retries counts it"


def test_one_without_the_other_is_held_with_what_to_name() -> None:
    flag_only = decide(PolicyInput(attempts=(CRASH,), knobs=BY_PATH))
    assert flag_only.kind is DecisionKind.FAIL
    assert "found for --resume_from_checkpoint" in flag_only.reason
    found_only = decide(PolicyInput(attempts=(CRASH,), newest_checkpoint="/out/checkpoint-15"))
    assert found_only.kind is DecisionKind.FAIL
    assert "/out/checkpoint-15 was found" in found_only.reason
    neither = decide(PolicyInput(attempts=(CRASH,)))
    assert "may overwrite its checkpoint" in neither.reason


def test_a_loss_that_is_no_number_goes_back_by_the_same_flag() -> None:
    attempt = ended(FailureClass.NAN_LOSS, last=18, saved=(5, 10))
    known = PolicyInput(
        attempts=(attempt,), knobs=BY_PATH, newest_checkpoint="/out/c-10", earlier_checkpoint="/out/c-5"
    )
    change = decide(known).change
    assert change is not None
    assert change.set_args == (("--resume_from_checkpoint", "/out/c-5"),)


def test_budgets_hold_for_such_restarts_too() -> None:
    known = PolicyInput(
        attempts=(CRASH,), knobs=BY_PATH, newest_checkpoint="/out/c-15", retry=RetrySettings(max_retries=1)
    )
    first = decide(known)
    again = decide(replace(known, attempts=(replace(CRASH, decision=first), CRASH)))
    assert again.kind is DecisionKind.GIVE_UP
    assert "--max-retries 1" in again.reason
