"""The rules: a table with one row per failure class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from supervisor.job.spec import ClassOverride, signature_key
from supervisor.run.records import FailureClass, Precondition, Reason

# How long to wait for the dead ranks' GPU memory. A driver needs seconds to clean up after a killed process; NVRx allows 50 s
# (nvidia-resiliency-ext, its health checks between restarts).
DRAIN_S: Final = 50.0
# A person, or the job's own clean-up, frees a disk within minutes.
DISK_WAIT_S: Final = 1800.0


class Answer(StrEnum):
    """What a rule does about its failure class."""

    SHRINK = "shrink"  # smaller micro-batch, same global batch
    RESTART = "restart"  # unchanged, from the newest checkpoint
    NEW_PORT = "new_port"
    NO_LIBUV = "no_libuv"
    RAISE_FILES = "raise_files"
    FEWER_WORKERS = "fewer_workers"
    RESUME_EARLIER = "resume_earlier"
    UNMEASURED = "unmeasured"  # without the measurements inside the process
    EXCLUDE_GPU = "exclude_gpu"  # only in older runs: as RESTART
    REQUEUE = "requeue"
    HOLD = "hold"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Rule:
    """The answer to one failure class.

    `max_times` limits how many restarts it makes without progress. If it is None, only ``--max-retries`` applies.
    `only_before_first_step` means that the class only occurs before the first step, so nothing can be lost.
    `advice_if_not_restarted` is what the user is told if there is no restart, or no further one. `held_unwatched` says
    whether a held run waits even without a dashboard. It is false if only an edit helps. `show_first` lists what the
    next launch waits for, for at most `wait_s` seconds.
    """

    answer: Answer
    max_times: int | None = None
    only_before_first_step: bool = False
    requires_progress: bool = False
    advice_if_not_restarted: str = ""
    show_first: tuple[Precondition, ...] = (Precondition.GPU_MEMORY,)
    wait_s: float = DRAIN_S
    held_unwatched: bool = True


_NO_CAUSE = "no known cause and no step made, so no restart by itself"
_CODE = "a restart would fail at the same line: fix it first"
_SHRINK = Rule(
    Answer.SHRINK,
    max_times=12,
    advice_if_not_restarted="gradient checkpointing, shorter sequences or sharding would help",
)
_RESTART = Rule(Answer.RESTART, advice_if_not_restarted="it comes back: look at the cause before another try")
_ONCE = Rule(
    Answer.RESTART,
    max_times=1,
    advice_if_not_restarted="it came back after a restart: look at the stacks and the device",
)
_IF_PROGRESS = Rule(
    Answer.RESTART,
    max_times=1,
    requires_progress=True,
    advice_if_not_restarted="no known cause, so no restart by itself",
)


def _stop(advice: str, *, held_unwatched: bool = True) -> Rule:
    return Rule(Answer.STOP, advice_if_not_restarted=advice, held_unwatched=held_unwatched)


def _requeue(why: str) -> Rule:
    return Rule(Answer.REQUEUE, advice_if_not_restarted=why)


UNMEASURED: Final = Rule(
    Answer.UNMEASURED,
    max_times=1,
    advice_if_not_restarted="--no-instrument shows whether stoker's measurements are the cause",
)
"""Also tried first when an attempt ended before its first step for no known cause (`decide`)."""

RULES: Final = MappingProxyType(
    {
        FailureClass.CUDA_OOM: _SHRINK,
        FailureClass.HOST_OOM: _SHRINK,
        FailureClass.SHM_EXHAUSTED: Rule(
            Answer.FEWER_WORKERS,
            max_times=3,
            advice_if_not_restarted="enlarge /dev/shm, or lower the number of DataLoader workers",
        ),
        FailureClass.FD_LIMIT: Rule(
            Answer.RAISE_FILES, max_times=1, advice_if_not_restarted="raise the hard limit (ulimit -Hn)"
        ),
        FailureClass.DISK_FULL: Rule(
            Answer.RESTART,
            max_times=2,
            advice_if_not_restarted="free some space, then restart",
            show_first=(Precondition.GPU_MEMORY, Precondition.DISK),
            wait_s=DISK_WAIT_S,
        ),
        FailureClass.NCCL_TIMEOUT: _RESTART,
        FailureClass.NCCL_ERROR: _RESTART,
        FailureClass.LIBUV: Rule(
            Answer.NO_LIBUV,
            max_times=1,
            only_before_first_step=True,
            advice_if_not_restarted="USE_LIBUV=0 did not help: install another PyTorch",
        ),
        FailureClass.PORT_IN_USE: Rule(
            Answer.NEW_PORT,
            max_times=5,
            only_before_first_step=True,
            advice_if_not_restarted="name a free port, or none: then stoker picks one",
            show_first=(Precondition.GPU_MEMORY, Precondition.PORT),
        ),
        FailureClass.RENDEZVOUS: replace(_RESTART, only_before_first_step=True),
        FailureClass.DATALOADER_WORKER: _RESTART,
        FailureClass.WORKER_CRASH: _RESTART,
        FailureClass.HANG: _ONCE,
        FailureClass.DDP_MISMATCH: _stop(_CODE),
        FailureClass.CUDA_ERROR: _ONCE,
        FailureClass.GPU_FAULT: Rule(
            Answer.RESTART,
            max_times=2,
            advice_if_not_restarted="the GPU fails again: have it looked at, or leave it out",
        ),
        FailureClass.CUDA_UNAVAILABLE: _stop("no GPU is usable: see the driver and the PyTorch build"),
        FailureClass.NAN_LOSS: Rule(
            Answer.RESUME_EARLIER,
            max_times=1,
            advice_if_not_restarted="lower the learning rate, or resume from an earlier checkpoint",
        ),
        FailureClass.CHECKPOINT_LOAD: Rule(
            Answer.RESUME_EARLIER,
            max_times=1,
            advice_if_not_restarted="name another checkpoint, or start from scratch",
        ),
        FailureClass.MISSING_FILE: _stop("a restart would not find it either: correct the path"),
        FailureClass.PERMISSION_DENIED: _stop("a restart has the same rights: correct them"),
        FailureClass.AUTH_OR_HUB: _stop("log in, or switch to offline mode"),
        FailureClass.IMPORT_ERROR: _stop(
            "a restart would not find it either: install it", held_unwatched=False
        ),
        FailureClass.USAGE_ERROR: _stop(
            "the script refused its arguments: correct them", held_unwatched=False
        ),
        FailureClass.COMPILE_ERROR: _stop("correct it, or turn torch.compile off"),
        FailureClass.CODE_ERROR: _stop(_CODE, held_unwatched=False),
        FailureClass.TERMINATED: Rule(
            Answer.RESTART,
            max_times=1,
            advice_if_not_restarted="something outside ended it again: find out what",
        ),
        FailureClass.HEALTHY: _IF_PROGRESS,
        FailureClass.UNKNOWN: _IF_PROGRESS,
    }
)

# Rules for classes whose reason matters more.
REASON_RULES: Final = MappingProxyType(
    {
        (FailureClass.CODE_ERROR, Reason.INSTRUMENT): UNMEASURED,
        (FailureClass.DATALOADER_WORKER, Reason.RAISED): _stop(_CODE),
        (FailureClass.WORKER_CRASH, Reason.EXIT_CODE): replace(
            _RESTART, requires_progress=True, advice_if_not_restarted=_NO_CAUSE
        ),
        (FailureClass.WORKER_CRASH, Reason.SILENT): _IF_PROGRESS,
        (FailureClass.UNKNOWN, Reason.ENDED_EARLY): _stop(
            "read its last lines for the reason; then continue it, or trust its exit code",
            held_unwatched=False,
        ),
        (FailureClass.TERMINATED, Reason.TIME_LIMIT): _requeue("the time limit was reached"),
        (FailureClass.TERMINATED, Reason.PREEMPTED): _requeue("the job was preempted"),
        (FailureClass.TERMINATED, Reason.NODE_FAIL): _requeue("a node failed"),
    }
)


def rule_for(
    failure: FailureClass,
    reason: Reason | None,
    overrides: tuple[ClassOverride, ...] = (),
    signature: str = "",
) -> Rule:
    """Return the rule for a class, adjusted by the user's ``[policy.<class>]`` or by the action for their own `signature`."""
    rule = RULES[failure]
    if reason is not None:
        rule = REASON_RULES.get((failure, reason), rule)
    override = override_for(failure, overrides, signature)
    if override is None:
        return rule
    if override.max_times is not None:
        rule = replace(rule, max_times=override.max_times)
    if override.wait_s is not None:
        rule = replace(rule, wait_s=override.wait_s)
    if override.show_first is not None:
        rule = replace(rule, show_first=tuple(Precondition(name) for name in override.show_first))
    answer = override.answer
    by_signature = override.failure != failure.value
    if answer == "stop":
        why = "[[signature]] says stop" if by_signature else "[policy] says stop"
        return replace(rule, answer=Answer.STOP, advice_if_not_restarted=why)
    if answer == "hold":
        why = "[[signature]] says hold" if by_signature else "[policy] says hold"
        return replace(rule, answer=Answer.HOLD, advice_if_not_restarted=why)
    wanted = Answer.RESTART if override.change in {None, "none"} else Answer(override.change)
    restarts = rule.answer not in {Answer.STOP, Answer.HOLD, Answer.REQUEUE}
    is_lifted = answer == "restart" and rule.answer in {Answer.STOP, Answer.HOLD}
    return replace(rule, answer=wanted) if is_lifted or (restarts and override.change is not None) else rule


def override_for(
    failure: FailureClass, overrides: tuple[ClassOverride, ...], signature: str = ""
) -> ClassOverride | None:
    """Return the user's override for their own signature, or failing that for the class, if there is one."""
    named = {o.failure: o for o in reversed(overrides)}
    return (named.get(signature_key(signature)) if signature else None) or named.get(failure.value)
