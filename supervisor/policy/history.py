"""The policy's input: the attempts so far, and whatever else the keeper knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from supervisor.job.batch import MemoryPoint
from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import Knobs, LoaderKnobs, RetrySettings, TrialSettings
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.state import AttemptState

# Logs count from 0 or 1. Adam allocates its state in the first step, so most out-of-memory failures happen there, and an evaluation
# before the training is logged as step 0 (nanoGPT).
FIRST_STEP: Final = 1


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Inputs to `decide`. The last of `attempts` is the one that just ended.

    Attributes:
        attempts: all attempts, oldest first.
        missed: a clause saying how the latest attempt failed to resume, or ran a batch other than the planned one.
        steps_seen: whether a step of any attempt would have been seen: by telemetry, or as a step or progress bar in the log.
        retry: the user's limits.
        knobs: the script's settings that can be changed.
        interactive: whether a user may be watching, so failures are held and restarts wait `INTERACTIVE_DELAY_S`.
        watched: whether the run is open in a viewer, so a change to the run waits `CHANGED_DELAY_S`.
        total_steps: the last step, if known.
        final_checkpoint: whether a final checkpoint was committed.
        memory: the memory figures from the latest failure's message, if it contained enough of them.
        port_named: whether the user chose the port, in which case it never changes.
        leads: whether this node may change the port (a single machine, or node 0).
        in_batch_job: whether a scheduler that can requeue the run started it (`cluster.scheduler`). SIGTERM then means
            "requeue me" if a checkpoint was committed.
        trials: what earlier attempts, and earlier runs of the same kind, showed about each micro-batch.
        loader: the DataLoader settings in the original command line.
        newest_checkpoint: the newest committed checkpoint, in the form that a path flag takes.
        newest_number: that checkpoint's number, in the form that a step flag takes.
        not_now: why the user's resume flag cannot be set yet.
        old_batch: why a resume with a different micro-batch would keep using the old one, or empty if it would not.
        given_start: the flag and value that tell the script what to start from (``--resume c2.pt``).
        question: whether the user can be asked about the batch because the measurements left something open.
        unsound: a clause naming the unusable checkpoints that a script looking for its newest one would load.
        trial: set if the run is a trial, which is never restarted.
        measured: whether stoker's measurements were active in the latest attempt's processes.
        code_hidden_by: a clause saying what hides the program's exit code from stoker.
        jitter: a number in [0, 1) that spreads out the backoff of many runs.
    """

    attempts: tuple[AttemptState, ...]
    missed: str = ""
    steps_seen: bool = True
    retry: RetrySettings = field(default_factory=RetrySettings)
    knobs: Knobs = field(default_factory=Knobs)
    interactive: bool = False
    watched: bool = False
    total_steps: int | None = None
    final_checkpoint: bool = False
    memory: MemoryPoint | None = None
    port_named: bool = False
    leads: bool = True
    in_batch_job: bool = False
    trials: tuple[MemoryTrial, ...] = ()
    loader: LoaderKnobs = field(default_factory=LoaderKnobs)
    newest_checkpoint: str | None = None
    newest_number: int | None = None
    not_now: str = ""
    old_batch: str = ""
    given_start: str | None = None
    question: bool = False
    unsound: str = ""
    trial: TrialSettings | None = None
    measured: bool = False
    code_hidden_by: str = ""
    jitter: float = 0.0

    @property
    def now(self) -> AttemptState:
        """The attempt that just ended."""
        return self.attempts[-1]

    @property
    def committed(self) -> bool:
        """Whether any attempt committed a checkpoint."""
        return self.final_checkpoint or any(a.checkpoint_steps for a in self.attempts)

    @property
    def resume_known(self) -> bool:
        """Whether a restart can resume from a checkpoint, because the script finds one or can be given a known one."""
        return not self.not_now and is_resume_known(self.knobs, self.newest_checkpoint, self.newest_number)

    @property
    def finished(self) -> bool:
        """Whether the latest attempt did all the work, judging by its last step or a final checkpoint."""
        last, total = self.now.last_step, self.total_steps
        return self.final_checkpoint or (last is not None and total is not None and last >= total)

    @property
    def may_blame_measurements(self) -> bool:
        """Whether measurements were active in the latest attempt and no earlier restart left them out."""
        return self.measured and not any(is_unmeasured(a.decision) for a in self.attempts)

    @property
    def changes(self) -> tuple[SpecChange, ...]:
        """All changes decided so far."""
        decided = (a.decision.change for a in self.attempts if a.decision is not None)
        return tuple(change for change in decided if change is not None)


def is_resume_known(knobs: Knobs, newest_checkpoint: str | None, newest_number: int | None = None) -> bool:
    """Check whether a restart can resume: the script finds its own checkpoint, or a flag and a checkpoint exist.

    Without a known checkpoint, a flag that means "the newest" is set only if the user chose it or the first launch included it.
    """
    if knobs.self_resuming or knobs.resume_is_set:
        return True
    if newest_checkpoint is None:
        return False
    by_number = knobs.resume_step is not None and newest_number is not None
    return knobs.resume is not None or knobs.resume_path is not None or by_number


def restarts_since_progress(history: PolicyInput) -> tuple[AttemptState, ...]:
    """Return the attempts that the policy restarted since the last progress, oldest first.

    Progress is a step beyond all earlier ones or a newer committed checkpoint. An attempt that made progress starts a
    new window. A restart without stoker's measurements does not count against any budget.
    """
    start = 0
    farthest = newest = -1
    for at, attempt in enumerate(history.attempts):
        step = attempt.last_step if attempt.last_step is not None else -1
        saved = max(attempt.checkpoint_steps, default=-1)
        if step > farthest or saved > newest:
            start = at
        farthest, newest = max(farthest, step), max(newest, saved)
        if attempt.by_person:
            start = at + 1
    window = history.attempts[start:-1]
    return tuple(
        a
        for a in window
        if a.decision is not None
        and a.decision.kind is DecisionKind.RESTART
        and not is_unmeasured(a.decision)
    )


def is_unmeasured(decision: Decision | None) -> bool:
    """Check whether a decision starts the next attempt without stoker's measurements."""
    return decision is not None and decision.change is not None and NOT_MEASURED in decision.change.env


def has_trained(attempt: AttemptState) -> bool:
    """Check whether a restart from the beginning would lose work, meaning that more than the first step was completed."""
    return attempt.stepped and (attempt.last_step is None or attempt.last_step > FIRST_STEP)


def first_bad_step(attempt: AttemptState) -> int | None:
    """Return the first step with a NaN or Inf loss. A script may exit before it logs that loss."""
    refused = attempt.verdict is not None and attempt.verdict.failure is FailureClass.NAN_LOSS
    if attempt.lost_at is not None or not refused or attempt.last_step is None:
        return attempt.lost_at
    return attempt.last_step + 1
