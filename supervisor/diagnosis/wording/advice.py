"""What to do next: the action that fits, and advice with the run's own values before the general one."""

from __future__ import annotations

from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.wording.classes import class_texts
from supervisor.diagnosis.wording.specific_advice import is_fragmented, particulars
from supervisor.run.failures import Action, FailureClass, Reason

# Why a job ended that nothing in it failed for; what to do about it depends on who ended it.
_REQUEUED = frozenset((Reason.TIME_LIMIT, Reason.PREEMPTED, Reason.NODE_FAIL))
BARE_KILL_ADVICE = (
    "A SIGKILL leaves no word: look for this time in `dmesg` and in the job's memory record (oom_kill in "
    "memory.events); without an entry there, somebody or a scheduler sent it."
)
UNCOUNTED_KILL_ADVICE = (
    "The job's memory record counted no kill for want of memory: a scheduler, a script or a person sent the SIGKILL; "
    "see the scheduler's record and `dmesg` at this time."
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
    """Advice, the most particular first. `text`: the causing line and a few below it.

    `bare_kill`: a SIGKILL is all that is known of the end.
    """
    own = particulars(failure, reason, text, job)
    general = class_texts()[failure].advice
    if bare_kill:
        counted_none = job.machine.cgroup_oom_kills == 0
        own.insert(0, UNCOUNTED_KILL_ADVICE if counted_none else BARE_KILL_ADVICE)
    if failure is FailureClass.WORKER_CRASH and bare_kill:
        general = ()  # faulthandler cannot catch a SIGKILL: signal(7)
    if failure is FailureClass.TERMINATED and reason not in _REQUEUED:
        general = ()
    return tuple(dict.fromkeys((*own, *general)))
