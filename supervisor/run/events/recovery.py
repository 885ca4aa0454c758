"""Events between a failure and the next good step, and of the probes before a first launch."""

from __future__ import annotations

import msgspec

from supervisor.job.batch import BatchSpec
from supervisor.job.knobs.memory_fit import MemoryTrial
from supervisor.job.spec import BatchQuestion
from supervisor.run.events.base import JournalEvent
from supervisor.run.records import Difference, Precondition, Sameness


class MemoryMeasured(JournalEvent, frozen=True, kw_only=True, tag="memory_measured"):
    """What an attempt showed of its micro-batch: fitted or not, and the most that a rank held."""

    attempt: int
    trial: MemoryTrial


class ChangePlanned(JournalEvent, frozen=True, kw_only=True, tag="change_planned"):
    """The next launch against the one before, as a diff: lines that begin with "-" or "+". Secrets are redacted."""

    attempt: int
    lines: tuple[str, ...]


class BatchAsked(JournalEvent, frozen=True, kw_only=True, tag="batch_asked"):
    """A restart with a smaller batch needs a person's answer: what could not be read of the batch."""

    attempt: int
    question: BatchQuestion


class BatchAnswered(JournalEvent, frozen=True, kw_only=True, tag="batch_answered"):
    """What a person answered, `by` whom; `day`: in an earlier run of the same script, on this day.

    `batch`: what the attempts until then ran with, by this answer.
    """

    question: BatchQuestion
    value: str
    by: str = ""
    batch: BatchSpec | None = None
    day: str = ""


class WaitingFor(JournalEvent, frozen=True, kw_only=True, tag="waiting_for"):
    """The next launch waits until something is shown; `text`: for what, and who prevents it."""

    attempt: int
    precondition: Precondition = msgspec.field(name="proof")
    text: str


class LaunchCleared(JournalEvent, frozen=True, kw_only=True, tag="launch_cleared"):
    """All that had to be shown before the next launch was, or the wait was over; `waited_s` in seconds."""

    attempt: int
    waited_s: float
    text: str = ""


class Recovered(JournalEvent, frozen=True, kw_only=True, tag="recovered"):
    """The time from a failure to the next completed step, in seconds; a part is None where it is not known.

    `attempt` made the step; `after` failed. The parts: `end_s` failure to the last process gone, `detect_s` to the
    verdict, `wait_s` back-off, `drain_s` wait for what had to be shown first, `spawn_s` plan to torchrun running,
    `rendezvous_s` torchrun to ranks running, `load_s` ranks to the first forward, `first_step_s` to its end.
    """

    attempt: int
    after: int
    total_s: float
    end_s: float | None = None
    detect_s: float | None = None
    wait_s: float | None = None
    drain_s: float | None = None
    spawn_s: float | None = None
    rendezvous_s: float | None = None
    load_s: float | None = None
    first_step_s: float | None = None


class ResumeCompared(JournalEvent, frozen=True, kw_only=True, tag="resume_compared"):
    """Whether a resumed attempt goes on with the same training, by what both logged (`policy.same_training`). The newest of an attempt holds.

    `difference`: in what it is another one. `text`: with the numbers, which stand in `numbers` too. `steps_twice` logged steps were compared one by
    one; `steps_new` were logged beyond the last one of before.
    """

    attempt: int
    result: Sameness
    difference: Difference | None = None
    text: str = ""
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    steps_twice: int = 0
    steps_new: int = 0


class ProbeStarted(JournalEvent, frozen=True, kw_only=True, tag="probe_started"):
    """A short launch to see whether `micro_batch` fits. Probes count from 1; their files lie in probes/<n>."""

    probe: int
    micro_batch: int
    argv: tuple[str, ...]


class ProbeEnded(JournalEvent, frozen=True, kw_only=True, tag="probe_ended"):
    """A probe is over. `fitted` None: it ended for another reason, in `why`; nothing is learnt of memory then."""

    probe: int
    micro_batch: int
    fitted: bool | None
    why: str
    took_s: float
    steps: int = 0


class BatchFitted(JournalEvent, frozen=True, kw_only=True, tag="batch_fitted"):
    """What the probes led to. `batch` is that of the first launch; None: as the job gave it."""

    probes: int
    batch: BatchSpec | None
    text: str
