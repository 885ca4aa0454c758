"""What to do next: the action that fits, and advice with the run's own values before the general one."""

from __future__ import annotations

from supervisor.diagnosis.classes import class_texts
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.particulars import is_fragmented, particulars
from supervisor.run.failures import Action, FailureClass, Reason

BARE_KILL_ADVICE = (
    "A SIGKILL leaves no word: look for this time in `dmesg` and in the job's memory record (oom_kill in "
    "memory.events); without an entry there, somebody or a scheduler sent it."
)


def action_for(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> Action:
    """The action that fits best; policy decides."""
    match failure:
        case FailureClass.CUDA_OOM if is_fragmented(text) and not job.present.allocator_set:
            return Action.SET_ALLOCATOR
        case FailureClass.HOST_OOM if reason is Reason.ALLOCATOR:
            return Action.REDUCE_BATCH
        case FailureClass.TERMINATED if reason is Reason.USER:
            return Action.STOP
        case FailureClass.TERMINATED if reason is Reason.OUTSIDE:
            return Action.RESTART
        case FailureClass.DATALOADER_WORKER if reason in (Reason.KILLED, Reason.SEGFAULT):
            return Action.RESTART
        case FailureClass.WORKER_CRASH if reason is Reason.AT_EXIT:
            return Action.NONE
        case _:
            return class_texts()[failure].action


def advice_for(
    failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence, *, bare_kill: bool = False
) -> tuple[str, ...]:
    """Advice, the most particular first. `text`: the causing line and a few below it."""
    own = particulars(failure, reason, text, job)
    if bare_kill:
        own.insert(0, BARE_KILL_ADVICE)
    return tuple(dict.fromkeys((*own, *class_texts()[failure].advice)))
