"""Ended attempts and knobs that tests of the policy share."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import Knobs, KnobScope
from supervisor.policy import PolicyInput, decide
from supervisor.run import events as ev
from supervisor.run.events import StopWhy
from supervisor.run.records import Action, Decision, FailureClass, Reason, Verdict
from supervisor.run.state import AttemptState

F = FailureClass


TRAINER = Knobs(
    batch="--device_batch_size",
    batch_scope=KnobScope.PER_RANK,
    global_batch="--total_batch_size",
    resume="--resume_from",
    declared=True,
)


NO_RESUME = replace(TRAINER, resume=None)


FOREIGN = Knobs()


NEVER = (F.CODE_ERROR, F.USAGE_ERROR, F.IMPORT_ERROR, F.MISSING_FILE, F.AUTH_OR_HUB, F.DDP_MISMATCH)


NEVER_TOO = (F.CUDA_UNAVAILABLE, F.COMPILE_ERROR, F.PERMISSION_DENIED)


def verdict(failure: FailureClass, reason: Reason | None = None) -> Verdict:
    return Verdict(
        failure=failure,
        reason=reason,
        confidence=0.9,
        rank=1,
        ranks=(1,),
        node=None,
        title=str(failure),
        cause=None,
        consequences=(),
        advice=(),
        action=Action.NONE,
        fingerprint="",
    )


def ended(
    failure: FailureClass | None,
    reason: Reason | None = None,
    *,
    exit_code: int | None = 1,
    last: int | None = None,
    saved: tuple[int, ...] = (),
    batch: BatchSpec | None = None,
    stop: StopWhy | None = None,
    lived_s: float = 30.0,
) -> AttemptState:
    return AttemptState(
        number=1,
        planned_t=0.0,
        verdict=verdict(failure, reason) if failure else None,
        exit_code=exit_code,
        first_step=None if last is None else 1,
        last_step=last,
        checkpoint_steps=saved,
        batch=batch,
        stop=stop_by(stop) if stop is not None else None,
        started_t=0.0,
        ended_t=lived_s,
    )


def stop_by(why: StopWhy) -> ev.StopIntended:
    return ev.StopIntended(t=0.0, attempt=1, why=why, by="kim", grace_s=0.0)


def lost_at(step: int) -> ev.LossNotFinite:
    return ev.LossNotFinite(t=0.0, attempt=1, value="nan", step=step)


def restarted(attempt: AttemptState, decision: Decision, by: str = "policy") -> AttemptState:
    return structs.replace(attempt, decision=decision, decided_by=by)


def one(attempt: AttemptState, knobs: Knobs = TRAINER, **more: object) -> Decision:
    return decide(replace(PolicyInput(attempts=(attempt,), knobs=knobs), **more))  # type: ignore[arg-type]


def batch_after(decision: Decision) -> BatchSpec:
    """The batch that a decision changes to."""
    assert decision.change is not None
    assert decision.change.batch is not None
    return decision.change.batch.after
