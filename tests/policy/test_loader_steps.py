"""The parts of policy that change a job step by step: host memory, a faulty GPU, flapping, what is shown first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import ClassOverride, Knobs, LoaderKnobs, RetrySettings
from supervisor.policy import PolicyInput, decide
from supervisor.run.records import DecisionKind, FailureClass, Reason, SpecChange
from supervisor.run.state import AttemptState
from tests.policy.cases import TRAINER, ended, lost_at, one, restarted

F = FailureClass
LOADER = LoaderKnobs(("--num_workers", 8))


def walk(now: AttemptState, loader: LoaderKnobs, times: int) -> list[SpecChange | None]:
    """What is changed when the same failure comes again and again, each time a step further."""
    attempts: tuple[AttemptState, ...] = ()
    changes = []
    for number in range(times):
        again = structs.replace(now, last_step=number + 1)
        decision = decide(PolicyInput((*attempts, again), knobs=TRAINER, loader=loader))
        changes.append(decision.change)
        attempts = (*attempts, restarted(again, decision))
    return changes


def test_a_kill_for_memory_halves_the_workers_then_the_batch() -> None:
    killed = ended(F.HOST_OOM, Reason.CGROUP_KILL, last=1, batch=BatchSpec(8, 1, 1))
    workers, batch = walk(killed, LOADER, 2)
    assert workers is not None
    assert workers.set_args == (("--num_workers", "4"),)
    assert batch is not None
    assert batch.batch is not None
    assert batch.batch.after == BatchSpec(4, 2, 1)


def test_a_full_dev_shm_halves_the_workers_twice() -> None:
    changes = walk(ended(F.SHM_EXHAUSTED, last=1), LOADER, 3)
    assert [c.set_args for c in changes if c and c.set_args] == [
        (("--num_workers", "4"),),
        (("--num_workers", "2"),),
    ]


def test_a_run_that_restarts_too_often_is_given_up_although_it_makes_progress() -> None:
    retry = RetrySettings(flap_max=3, flap_window_s=100.0)
    attempts: tuple[AttemptState, ...] = ()
    kinds = []
    for number in range(4):
        now = structs.replace(ended(F.WORKER_CRASH, Reason.SIGNAL, last=number + 1), ended_t=10.0 * number)
        decision = decide(PolicyInput((*attempts, now), knobs=TRAINER, retry=retry))
        kinds.append(decision.kind)
        attempts = (*attempts, restarted(now, decision))
    assert kinds == [DecisionKind.RESTART] * 3 + [DecisionKind.GIVE_UP]
    later = structs.replace(attempts[-1], ended_t=1000.0, decision=None)
    assert (
        decide(PolicyInput((*attempts[:-1], later), knobs=TRAINER, retry=retry)).kind is DecisionKind.RESTART
    )


NAN = structs.replace(ended(F.NAN_LOSS, last=60, saved=(40,)), not_finite=lost_at(57))


@pytest.mark.parametrize(
    ("lost", "at", "why"),
    [
        (57, 40, "again at step 57, and stoker goes back for that only once a run"),
        (900, 880, "again at step 900, and stoker goes back for that only once a run"),
    ],
)
def test_a_run_goes_back_once_for_a_loss_that_is_no_number(lost: int, at: int, why: str) -> None:
    first = one(NAN, newest_checkpoint="c/40")
    assert (first.kind, first.change) == (DecisionKind.RESTART, SpecChange())
    assert "before the loss became NaN or Inf at step 57: c/40" in first.reason
    now = structs.replace(
        NAN, not_finite=lost_at(lost), resume_at=at, last_step=lost + 3, checkpoint_steps=(at + 1,)
    )
    again = PolicyInput((restarted(NAN, first), now), knobs=TRAINER, newest_checkpoint="c/40")
    assert decide(again).kind is DecisionKind.GIVE_UP
    assert why in decide(again).reason
    held = decide(replace(again, interactive=True))
    assert held.kind is DecisionKind.HOLD
    twice = RetrySettings(overrides=(ClassOverride("nan_loss", max_times=2),))
    assert decide(replace(again, retry=twice)).kind is DecisionKind.RESTART
    third = (restarted(NAN, first), restarted(NAN, first), now)
    assert (
        "goes back for that only 2 times a run" in decide(replace(again, attempts=third, retry=twice)).reason
    )
    by_person = restarted(NAN, first, "kim")
    assert decide(replace(again, attempts=(by_person, now))).kind is DecisionKind.RESTART


@pytest.mark.parametrize("failure", [F.NAN_LOSS, F.WORKER_CRASH, F.NCCL_ERROR, F.CHECKPOINT_LOAD])
def test_where_the_script_would_take_a_bad_checkpoint_it_waits_and_names_it(failure: F) -> None:
    why = "the script loads its newest checkpoint, written after the loss became NaN or Inf at step 57: move out/60 away, then restart"
    now = structs.replace(ended(failure, last=66), not_finite=lost_at(57))
    headless = one(now, Knobs(self_resuming=True), newest_checkpoint="c/40", unsound=why)
    assert (headless.kind, headless.exit_code) == (DecisionKind.FAIL, 1)
    assert headless.reason == f"{failure.value}: {why}"
    held = one(now, Knobs(self_resuming=True), newest_checkpoint="c/40", unsound=why, interactive=True)
    assert held.kind is DecisionKind.HOLD
