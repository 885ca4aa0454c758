"""The run's state as a pure fold of its journal: ``state = fold(state, event)``.

A run's condition is a type with its own payload (`Condition`), kept alongside everything that happened to each attempt.
Replaying a journal reproduces the live state exactly, because the keeper has no other state.
"""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from supervisor.job.batch import BatchSpec
from supervisor.job.knobs.measured_knobs import with_measured
from supervisor.job.knobs.resume_settings import with_answered_resume, with_measured_resume
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import OF_BATCH, RESTARTS, Unread
from supervisor.run import events as ev
from supervisor.run.records import OUT_OF_MEMORY, Decision, FailureClass, Finding, Reason, Verdict

if TYPE_CHECKING:
    from supervisor.job.spec import BatchQuestion, JobSpec

# The reasons for a stop on request, as opposed to a stop after a failure.
REQUESTED_STOPS = frozenset(
    (ev.StopWhy.REQUEST, ev.StopWhy.SIGNAL, ev.StopWhy.RESTART, ev.StopWhy.REQUEUE, ev.StopWhy.TRIAL)
)
MAX_TIMELINE = 2000
MAX_ADVISORIES = 50
MAX_CHECKPOINTS = 50
MAX_CHECKPOINT_STEPS = 100  # of one attempt
MAX_ANSWERED = 256


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base class for the parts of a state: frozen and compared by value."""


class Preflight(Part, frozen=True, kw_only=True, tag="preflight"):
    """Nothing has been launched yet."""


class Launching(Part, frozen=True, kw_only=True, tag="launching"):
    """A plan is journaled, but the launcher has not been seen yet."""

    attempt: int


class Running(Part, frozen=True, kw_only=True, tag="running"):
    """The attempt is running."""

    attempt: int
    phase: ev.Phase


class Stopping(Part, frozen=True, kw_only=True, tag="stopping"):
    """stoker is stopping the attempt. `step` is the latest step of the stop sequence."""

    attempt: int
    why: ev.StopWhy
    by: str
    step: ev.StopStep | None = None


class Ended(Part, frozen=True, kw_only=True, tag="ended"):
    """The attempt's processes have exited. It has no verdict yet, and its logs may not be fully read (`AttemptState.reads_on`)."""

    attempt: int
    exit_code: int | None


class DiagnosedAs(Part, frozen=True, kw_only=True, tag="diagnosed"):
    """The attempt has a verdict, but the policy has not decided yet or its decision has not been carried out."""

    attempt: int
    verdict: Verdict


class Backoff(Part, frozen=True, kw_only=True, tag="backoff"):
    """The next attempt starts at wall time `until`, `delay_s` after the wait began."""

    attempt: int
    until: float
    decision: Decision
    delay_s: float | None = None


class HeldOpen(Part, frozen=True, kw_only=True, tag="held"):
    """The run is waiting for the user. `decision.change` is the proposed change, if any."""

    attempt: int
    reason: str
    decision: Decision | None
    until: float | None = None


class Finished(Part, frozen=True, kw_only=True, tag="finished"):
    """The run has ended."""

    outcome: ev.Outcome
    exit_code: int
    reason: str


Condition: TypeAlias = (
    Preflight | Launching | Running | Stopping | Ended | DiagnosedAs | Backoff | HeldOpen | Finished
)


class RankState(Part, frozen=True, kw_only=True):
    """What the journal says about one worker on this node."""

    local_rank: int
    rank: int | None = None
    pid: int | None = None
    start_time: float | None = None
    stdout: str | None = None
    stderr: str | None = None
    exited: bool = False
    exit_code: int | None = None


class AttemptState(Part, frozen=True, kw_only=True):
    """One attempt, from its plan to the decision after it.

    `found_over` means that it had ended before the observer attached. `started_t` is then taken from timestamps in its
    logs, if any. `day_guessed` means that the date of `started_t` is a guess. `stamped_t` is the last timestamp in a log
    that was copied. `log_checked` says whether its watched logs were checked for growth. `quiet_since` is when they stopped
    growing (wall-clock seconds), although nothing shows that the job has ended. `gone_t` is when its processes had exited,
    if reading the logs took longer. `failed_t` is the first sign of failure, until the run ends. `log_read_bytes` and
    `log_size_bytes` are set if not all was read. `node_exits` holds the exit codes of the launchers on other nodes, keyed
    by node. `stall` is set while there is no progress, with `only_flagged` (why the attempt is not stopped), `countdown`
    (when it will be) and `kept` (who chose to wait). `stacks` is the latest round. `hang` is why the attempt was stopped as
    a hang, if it was. `failing` is the first rank known to fail; it is cleared if that rank exits successfully or steps
    continue. `slow_rank` is the latest report of a slow rank. `not_finite` and `finite_again` say where its loss first
    became nan or inf, and where it was first finite again. `missed` means that it started below the checkpoint it should
    have resumed from. `measured` is its measured batch. `confirmed` or `differs` says whether its first steps matched the
    plan; neither is set if nothing was measured. `step_at_evidence` is its last step when the latest matching log line was
    journaled.
    """

    number: int
    argv: tuple[str, ...] = ()
    reason: str = ""
    batch: BatchSpec | None = None
    resume: str | None = None
    script_hash: str | None = None
    resume_copy: str | None = None
    resume_at: int | None = None
    planned_t: float
    started_t: float | None = None
    first_step_t: float | None = None
    ended_t: float | None = None
    pid: int | None = None
    start_time: float | None = None
    exit_code: int | None = None
    ranks: dict[int, RankState] = {}
    phase: ev.Phase | None = None
    phase_t: float | None = None
    resumed_step: int | None = None
    memory_base_bytes: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    step_at_evidence: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    checkpoint_steps: tuple[int, ...] = ()
    stop: ev.StopIntended | None = None
    verdict: Verdict | None = None
    verdict_provisional: bool = False
    decision: Decision | None = None
    decided_by: str = ""
    trial: MemoryTrial | None = None
    change: tuple[str, ...] = ()
    recovery: ev.Recovered | None = None
    compared: ev.ResumeCompared | None = None
    left: tuple[ev.ProcessesLeft, ...] = ()
    stall: ev.StallFlagged | None = None
    only_flagged: ev.OnlyFlagged | None = None
    countdown: ev.HangCountdown | None = None
    kept: ev.HangKept | None = None
    stacks: ev.StacksTaken | None = None
    hang: ev.HangFound | None = None
    failing: ev.RankFailing | None = None
    slow_rank: ev.SlowRankFound | None = None
    not_finite: ev.LossNotFinite | None = None
    finite_again: ev.LossFinite | None = None
    missed: ev.ResumeMissed | None = None
    measured: ev.BatchMeasured | None = None
    confirmed: ev.PlanConfirmed | None = None
    differs: ev.PlanDiffers | None = None
    memory_kills: int | None = None
    found_over: bool = False
    log_checked: bool = False
    quiet_since: float | None = None
    stamped_t: float | None = None
    day_guessed: bool = False
    gone_t: float | None = None
    failed_t: float | None = None
    log_read_bytes: int | None = None
    log_size_bytes: int | None = None
    node_exits: dict[int, int | None] = {}

    @property
    def shown_batch(self) -> BatchSpec | None:
        """The measured batch, or else the planned one."""
        return (self.measured.batch if self.measured is not None else None) or self.batch

    @property
    def changes_batch(self) -> bool:
        """Whether the restart after this attempt changes the batch."""
        change = self.decision.change if self.decision is not None else None
        return change is not None and change.batch is not None

    @property
    def reads_on(self) -> bool:
        """Whether the processes have exited but their logs are still being read."""
        return self.gone_t is not None and self.ended_t is None

    @property
    def job_exit_code(self) -> int | None:
        """The launcher's exit code or, if that is 0, the exit code of another node whose launcher failed."""
        failed = (code for code in self.node_exits.values() if code != 0)
        return next(failed, 0) if self.exit_code == 0 else self.exit_code

    @property
    def has_unread(self) -> bool:
        """Whether some of the attempt's logs were not read."""
        return self.log_read_bytes is not None and self.log_size_bytes is not None

    @property
    def ended_on_request(self) -> bool:
        """Whether the attempt was stopped on request and did not fail on its own, so nothing needs fixing."""
        if self.stop is None or self.stop.why not in REQUESTED_STOPS:
            return False
        verdict = self.verdict
        if verdict is None or verdict.failure is FailureClass.HEALTHY:
            return True
        return verdict.failure is FailureClass.TERMINATED and verdict.reason is Reason.USER

    @property
    def failure(self) -> FailureClass | None:
        """The attempt's failure class, or None if it did not fail or has no verdict."""
        if self.verdict is None or self.verdict.failure is FailureClass.HEALTHY or self.ended_on_request:
            return None
        return self.verdict.failure

    @property
    def stepped(self) -> bool:
        """Whether the attempt is known to have completed a step."""
        return self.first_step is not None or self.last_step is not None

    @property
    def by_person(self) -> bool:
        """Whether the user decided what to do after this attempt."""
        return self.decision is not None and self.decided_by != "policy"

    @property
    def refuted(self) -> bool:
        """Whether the attempt's batch showed that an answer about a setting was wrong."""
        return self.differs is not None and self.differs.wrong is not None

    @property
    def lost_at(self) -> int | None:
        """The step at which the loss became NaN or Inf for good, or None if it never did or the step is unknown."""
        lost = self.not_finite
        return lost.step if lost is not None and self.finite_again is None else None

    @property
    def begins_at(self) -> float:
        """The first step of this attempt, or infinity until it is known.

        A script that prints every hundredth step prints its first step late. The step the attempt resumed from is more
        exact, and so is the checkpoint it should have resumed from, once a later step has been seen.
        """
        known = [] if self.first_step is None else [self.first_step]
        known += [] if self.resumed_step is None else [self.resumed_step + 1]
        known += [self.resume_at + 1] if self.resume_at is not None and self.went_on else []
        return min(known, default=math.inf)

    @property
    def went_on(self) -> bool:
        """Whether the attempt's first step came after the checkpoint it should have resumed from."""
        return self.resume_at is not None and self.first_step is not None and self.first_step > self.resume_at

    @property
    def is_resume_seen(self) -> bool:
        """Whether the first step, or the measurements of a script that counts from 0, show that a checkpoint was loaded."""
        return self.went_on or (self.confirmed is not None and bool(self.confirmed.resume))


class Tone(StrEnum):
    """The color of a timeline entry."""

    INFO = "info"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


class Moment(Part, frozen=True, kw_only=True):
    """A timeline entry, without wording.

    `kind` is the event's tag, or a name of its own if the state shows more than the event (`run.timeline`). `values` are
    the event's strings and numbers; unknown values are absent.
    """

    t: float
    attempt: int | None
    kind: str
    tone: Tone
    values: dict[str, str | int | float] = {}


_POLICY = frozenset({"", "policy"})
A_PIPE = "a pipe"
"""The source of a watched run that is read from a pipe. Such a run begins when the pipe's writer does."""


class RunState(Part, frozen=True, kw_only=True):
    """Everything that views and the keeper know about a run, from its journal alone.

    `best_loss` is the lowest loss of all attempts, and `best_step` its step, if known. `kept` lists checkpoints that were
    copied before a resume, or could not be. `answers` is keyed by question. `wrong` lists answers that led to a batch other
    than the planned one. `nodes` is the last sighting of each other node, in the leader's journal. `newer_version` is the
    schema version of events that only a newer stoker understands. `journal_read` is the bytes folded so far and in total
    while only the tail of a long journal is shown, or None once all are folded.
    """

    run_id: str = ""
    name: str = ""
    mode: str = "launched"
    host: str = ""
    source: str | None = None
    started_t: float | None = None
    ended_t: float | None = None
    last_t: float | None = None
    keeper_pid: int | None = None
    boot_id: str | None = None
    slurm_job: str | None = None
    keeper_left: str | None = None
    condition: Condition = Preflight()
    total_steps: int | None = None
    world_size: int | None = None
    findings: tuple[Finding, ...] = ()
    attempts: tuple[AttemptState, ...] = ()
    progress: ev.Progress | None = None
    best_loss: float | None = None
    best_step: int | None = None
    checkpoint: ev.CheckpointCommitted | None = None
    checkpoints: tuple[ev.CheckpointCommitted, ...] = ()
    kept: tuple[ev.CheckpointKept, ...] = ()
    probes: tuple[ev.ProbeEnded, ...] = ()
    probing: ev.ProbeStarted | None = None
    fitted: ev.BatchFitted | None = None
    waiting: ev.WaitingFor | None = None
    advisories: tuple[ev.Advisory, ...] = ()
    timeline: tuple[Moment, ...] = ()
    asked: ev.BatchAsked | None = None
    answers: dict[Unread, ev.BatchAnswered] = {}
    wrong: tuple[str, ...] = ()
    answered: dict[str, str] = {}
    nodes: dict[int, ev.NodeSeen] = {}
    unknown_events: int = 0
    newer_version: int | None = None
    clock_ahead_s: float = 0.0
    journal_read: tuple[int, int] | None = None

    @property
    def attempt(self) -> AttemptState | None:
        """The latest attempt, or None before the first launch."""
        return self.attempts[-1] if self.attempts else None

    @property
    def resumable(self) -> ev.CheckpointCommitted | None:
        """The newest checkpoint that a restart can resume from."""
        if self.checkpoint is not None and not self.unsound(self.checkpoint):
            return self.checkpoint
        return next(reversed(self.sound_checkpoints), None)

    @property
    def sound_checkpoints(self) -> tuple[ev.CheckpointCommitted, ...]:
        """The checkpoints that a restart can resume from, oldest first. If a path was overwritten, only the latest save counts."""
        newest = {saved.path: saved for saved in self.checkpoints}
        return tuple(c for c in self.checkpoints if newest[c.path] is c and not self.unsound(c))

    def unsound(self, saved: ev.CheckpointCommitted) -> bool:
        """Check whether a restart must not resume from `saved`: its attempt had not resumed or had a wrong batch, its loss was NaN, or it later failed to load."""
        own = self.find(saved.attempt)
        if own is not None:
            is_lost = own.lost_at is not None and saved.step >= own.lost_at
            is_missed = own.missed is not None and self.values_answered.get(Unread.COUNTER) != RESTARTS
            if is_lost or is_missed or own.differs is not None:
                return True
        # A person who restarts the run may have fixed the cause of the failed load.
        later = (a for a in self.attempts if a.number > saved.attempt and a.resume_at == saved.step)
        return any(
            a.failure is FailureClass.CHECKPOINT_LOAD and a.missed is None and a.decided_by in _POLICY
            for a in later
        )

    @property
    def last_step(self) -> int | None:
        """The last step of the latest attempt that completed one."""
        return next((a.last_step for a in reversed(self.attempts) if a.last_step is not None), None)

    def same_failure(self, verdict: Verdict | None, number: int) -> tuple[int, ...]:
        """Return the numbers of the attempts other than `number` that have the same failure as `verdict`."""
        mark = verdict.fingerprint if verdict is not None else ""
        judged = [a for a in self.attempts if mark and a.verdict is not None and a.number != number]
        return tuple(a.number for a in judged if a.verdict is not None and a.verdict.fingerprint == mark)

    def find(self, number: int) -> AttemptState | None:
        """Return attempt `number`, or None."""
        return next((a for a in reversed(self.attempts) if a.number == number), None)

    def answered_job(self, job: JobSpec) -> JobSpec:
        """Return `job` completed with the measurements and the user's answers about its batch and how it resumes."""
        if (measured := self.measured) is not None:
            job = with_measured(job, measured.settings.answered(self.values_answered))
        knobs = with_answered_resume(job.knobs, self.values_answered.get(Unread.RESUME, ""))
        if (seen := self.resume_measured) is not None:
            knobs = with_measured_resume(knobs, seen.resume, seen.resume_setting, seen.resume_how)
        return dataclasses.replace(job, knobs=knobs) if knobs is not job.knobs else job

    @property
    def planned_steps(self) -> int | None:
        """The total number of training steps: declared, logged or taken from a measured setting. For display only."""
        seen = self.attempt.measured if self.attempt is not None else None
        planned = seen.planned_steps if seen is not None else None
        return self.total_steps or (planned if planned and planned >= (self.last_step or 0) else None)

    @property
    def values_answered(self) -> dict[str, str]:
        """The answers, keyed by question."""
        return {what: given.value for what, given in self.answers.items()}

    @property
    def answer(self) -> ev.BatchAnswered | None:
        """The latest answer about the batch."""
        return next((given for what, given in reversed(self.answers.items()) if what in OF_BATCH), None)

    @property
    def measured(self) -> ev.BatchMeasured | None:
        """The batch as measured before any change to it: the first complete measurement, or else the first of any kind."""
        found: list[ev.BatchMeasured] = []
        for attempt in self.attempts:
            found += [attempt.measured] if attempt.measured is not None else []
            if attempt.changes_batch:
                break
        return next((seen for seen in found if seen.batch and not seen.refusal), found[0] if found else None)

    @property
    def resume_measured(self) -> ev.BatchMeasured | None:
        """The latest measurement that shows how the script resumes."""
        measured = (a.measured for a in reversed(self.attempts))
        return next((seen for seen in measured if seen is not None and seen.resume is not None), None)

    @property
    def open_question(self) -> BatchQuestion | None:
        """The question that the user can answer now, while the run is training or waiting. Answers can be changed until the restart."""
        attempt, asked = self.attempt, self.asked
        if attempt is None or asked is None or asked.attempt != attempt.number:
            return None
        if isinstance(self.condition, Running):
            return asked.question if self.answers.get(asked.question.what) is None else None
        if not isinstance(self.condition, HeldOpen | Backoff) or attempt.decided_by != "policy":
            return None
        # The question may have been asked before an unrelated failure.
        needs_batch = attempt.failure in OUT_OF_MEMORY or attempt.differs is not None
        needs_other = attempt.decision is not None and attempt.decision.asks
        return asked.question if (needs_batch if asked.question.what in OF_BATCH else needs_other) else None

    @property
    def failed_for(self) -> FailureClass | None:
        """The failure of a run that is waiting for the user or was stopped while waiting, or None for any other run."""
        condition, attempt = self.condition, self.attempt
        if attempt is None or self.mode == "observed":
            return None
        failed_first = attempt.stop is None or attempt.stop.why not in REQUESTED_STOPS
        stopped = isinstance(condition, Finished) and condition.outcome is ev.Outcome.STOPPED
        return attempt.failure if isinstance(condition, HeldOpen) or (stopped and failed_first) else None

    @property
    def cuts(self) -> dict[int, float]:
        """For each attempt whose work a later one repeated, the step at which the repeated part begins, keyed by attempt."""
        found: dict[int, float] = {}
        least = math.inf
        for attempt in reversed(self.attempts):
            if least < math.inf:
                found[attempt.number] = least
            least = min(least, attempt.begins_at)
        return found

    def now(self, wall: float) -> float:
        """Convert wall time to the time scale of the run's events. The two differ if the system clock was changed."""
        return wall - self.clock_ahead_s

    @property
    def began_t(self) -> float | None:
        """When the job began; for a watched job, according to its logs or processes. None if only the attach time is known."""
        attempt = self.attempt
        if self.mode != "observed" or attempt is None or self.source == A_PIPE:
            return self.started_t
        return attempt.started_t if attempt.started_t != attempt.planned_t else None

    def elapsed_s(self, now: float, *, has_keeper: bool) -> float | None:
        """Return the seconds that the attempts have taken until `now`, or None if unknown.

        Time between attempts, time spent waiting for the user and time without a keeper do not count.
        """
        attempt, began_t = self.attempt, self.began_t
        ends = [self.ended_t] if attempt is None else [attempt.ended_t, attempt.gone_t, attempt.quiet_since]
        end = next((t for t in ends if t is not None), None)
        if attempt is not None and attempt.stamped_t is not None and end == attempt.quiet_since:
            end = attempt.stamped_t
        is_unseen = self.mode == "observed" and attempt is not None and not attempt.log_checked
        if end is None and attempt is not None and (attempt.found_over or (has_keeper and is_unseen)):
            return None  # its log shows when it began, but not yet when it ended, or whether it has
        if end is None:
            end = now if has_keeper and not self.is_over else self.ended_t or self.last_t
        if began_t is None or end is None:
            return None
        return max(0.0, end - began_t - self.waited_s)

    @property
    def waited_s(self) -> float:
        """The total seconds spent between the end of an attempt and the next launch."""
        pairs = pairwise(self.attempts)
        return sum(b.planned_t - a.ended_t for a, b in pairs if a.ended_t is not None)

    @property
    def is_end_unseen(self) -> bool:
        """Whether it is unknown how a watched job ended: its log breaks off, or its exit status could not be seen."""
        verdict = self.attempt.verdict if self.attempt is not None else None
        return self.mode == "observed" and (verdict is None or not verdict.shows_end)

    @property
    def memory_trials(self) -> tuple[MemoryTrial, ...]:
        """The micro-batches that fit and those that ran out of memory, first from probes and then from attempts."""
        probes = [MemoryTrial(p.micro_batch, fitted=p.fitted) for p in self.probes if p.fitted is not None]
        return (*probes, *(view.trial for view in self.attempts if view.trial is not None))

    @property
    def is_over(self) -> bool:
        """Whether the run has an outcome."""
        return isinstance(self.condition, Finished)
