"""Ended attempts and knobs that tests of the policy share."""

from __future__ import annotations

from dataclasses import replace

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import Knobs, KnobScope
from supervisor.policy import PastAttempt, PolicyInput, StopCause, decide
from supervisor.run.records import Action, Decision, FailureClass, Reason, Verdict

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


def verdict(failure: FailureClass, reason: Reason | None = None, fingerprint: str = "") -> Verdict:
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
        fingerprint=fingerprint,
    )


def ended(
    failure: FailureClass | None,
    reason: Reason | None = None,
    *,
    exit_code: int | None = 1,
    last: int | None = None,
    saved: tuple[int, ...] = (),
    batch: BatchSpec | None = None,
    stop: StopCause | None = None,
    lived_s: float = 30.0,
    seen: bool = True,
    fingerprint: str = "",
) -> PastAttempt:
    return PastAttempt(
        verdict=verdict(failure, reason, fingerprint) if failure else None,
        exit_code=exit_code,
        first_step=None if last is None else 1,
        last_step=last,
        checkpoint_steps=saved,
        batch=batch,
        stop=stop,
        lived_s=lived_s,
        steps_seen=seen,
    )


def restarted(attempt: PastAttempt, decision: Decision) -> PastAttempt:
    return replace(attempt, decision=decision)


def one(attempt: PastAttempt, knobs: Knobs = TRAINER, **more: object) -> Decision:
    return decide(replace(PolicyInput(attempts=(attempt,), knobs=knobs), **more))  # type: ignore[arg-type]
