"""The closed set of events that a journal holds.

One JSON object a line: ``{"kind": ..., "v": 1, "t": wall seconds, ...}``. An event is written by the
keeper of one node and never changed. It carries kinds and values; what it reads like is the views' business, but for
reasons and titles, which policy and diagnosis write. Samples (GPU, host, per-step metrics) are not events: they go to
``series/``; log lines stay in the files that torchrun wrote.

`t` is wall time, for display and for joining nodes; order within a node is the order of lines.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from supervisor.job.batch import BatchSpec
from supervisor.run.events import base, health, recovery
from supervisor.run.records import Decision, FailureClass, Finding, Verdict

# One name for all events, wherever they are defined.
SCHEMA_VERSION = base.SCHEMA_VERSION
JournalEvent = base.JournalEvent
BatchAnswered = recovery.BatchAnswered
BatchAsked = recovery.BatchAsked
BatchFitted = recovery.BatchFitted
ChangePlanned = recovery.ChangePlanned
LaunchCleared = recovery.LaunchCleared
MemoryMeasured = recovery.MemoryMeasured
ProbeEnded = recovery.ProbeEnded
ProbeStarted = recovery.ProbeStarted
Recovered = recovery.Recovered
ResumeCompared = recovery.ResumeCompared
WaitingFor = recovery.WaitingFor
HangCountdown = health.HangCountdown
HangFound = health.HangFound
HangKept = health.HangKept
HangWithdrawn = health.HangWithdrawn
OnlyFlagged = health.OnlyFlagged
RanksAt = health.RanksAt
ClockSet = health.ClockSet
StacksProbed = health.StacksProbed
StacksTaken = health.StacksTaken
StallEnded = health.StallEnded
StallFlagged = health.StallFlagged


class Phase(StrEnum):
    """What a running attempt is doing."""

    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    COMPILING = "compiling"
    STEPPING = "stepping"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"


class StopWhy(StrEnum):
    """Why stoker itself ended an attempt. Journalled before the first signal is sent."""

    REQUEST = "request"  # a person asked, through control/
    SIGNAL = "signal"  # the keeper got SIGTERM or Ctrl-C
    RESTART = "restart"  # to relaunch with another plan
    RANK_DIED = "rank_died"  # a rank died by itself and its peers hang on
    REQUEUE = "requeue"  # SLURM's warning signal
    HANG = "hang"


class StopStep(StrEnum):
    """The steps of the stop sequence, in order."""

    ASK = "ask"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"
    SWEEP = "sweep"
    SURVIVORS = "survivors"


class Outcome(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GAVE_UP = "gave_up"
    STOPPED = "stopped"
    LOST = "lost"
    REFUSED = "refused"


class RequestKind(StrEnum):
    """What a viewer may ask of a keeper."""

    STOP = "stop"
    STOP_NOW = "stop_now"
    RESTART = "restart"
    RESTART_WITH = "restart_with"
    START_NOW = "start_now"
    HOLD = "hold"
    STACKS = "stacks"
    KEEP_WAITING = "keep_waiting"
    ANSWER = "answer"
    NOTE = "note"


class RunStarted(JournalEvent, frozen=True, kw_only=True, tag="run_started"):
    """First line of a journal. `mode` is "launched" or "observed" (a keeper without a child)."""

    run_id: str
    name: str
    mode: str
    host: str
    total_steps: int | None = None
    world_size: int | None = None
    source: str | None = None


class KeeperStarted(JournalEvent, frozen=True, kw_only=True, tag="keeper_started"):
    """A keeper took the lock. `adopted`: it took over a run whose keeper had died.

    `boot_id`: of the machine: pids and start times mean nothing across a boot. `host`: where, if elsewhere than the run
    was started; `slurm_job`: within which job. `continued_by`: who had it start the next attempt of a run that stood.
    """

    pid: int
    boot_id: str | None = None
    host: str | None = None
    slurm_job: str | None = None
    continued_by: str = ""
    start_time: float
    version: str
    adopted: bool = False
    interactive: bool = False


class KeeperLeft(JournalEvent, frozen=True, kw_only=True, tag="keeper_left"):
    """The keeper released the lock on purpose."""

    why: str


class PreflightFound(JournalEvent, frozen=True, kw_only=True, tag="preflight_found"):
    """One pre-flight finding."""

    finding: Finding


class LaunchIntended(JournalEvent, frozen=True, kw_only=True, tag="launch_intended"):
    """Attempt `attempt` is about to be spawned with this plan (also in attempts/<n>/plan.json).

    `resume`: the flag by which the script was instructed to resume, if it was; `resume_at`: the step of the checkpoint that it is to go
    on from, also where the script finds that by itself. `resume_copy`: the changed copy of a checkpoint that
    it resumes from, which is removed once a newer checkpoint is committed.
    """

    attempt: int
    argv: tuple[str, ...]
    reason: str
    batch: BatchSpec | None = None
    resume: str | None = None
    script_hash: str | None = None
    resume_copy: str | None = None
    resume_at: int | None = None


class AttemptStarted(JournalEvent, frozen=True, kw_only=True, tag="attempt_started"):
    """The launcher runs. `pid` and `start_time` (seconds since boot) identify its process for ever."""

    attempt: int
    pid: int
    start_time: float


class RankStarted(JournalEvent, frozen=True, kw_only=True, tag="rank_started"):
    """A worker process of this node was seen; its log files are relative to the attempt folder."""

    attempt: int
    local_rank: int
    pid: int | None = None
    start_time: float | None = None
    rank: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class PhaseChanged(JournalEvent, frozen=True, kw_only=True, tag="phase_changed"):
    """The attempt entered a phase."""

    attempt: int
    phase: Phase
    step: int | None = None


class TrainerReady(JournalEvent, frozen=True, kw_only=True, tag="trainer_ready"):
    """What a trainer with telemetry reports before its first forward.

    `resumed_step`: the step of the checkpoint it loaded, None for a start from scratch.
    `memory_base_bytes`: held before the first forward: the constant part of a memory prediction.
    """

    attempt: int
    resumed_step: int | None = None
    memory_base_bytes: int | None = None


class Progress(JournalEvent, frozen=True, kw_only=True, tag="progress"):
    """One a second at most; each field may be unknown. `minima`: step and loss of each running minimum since the one before.

    `lag_bytes`: of the `log_bytes` in the logs so many are not read yet; only where the reading is behind, and then every 10 s
    at least, though nothing else is new.
    """

    attempt: int
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    val_loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_sec: float | None = None
    samples_per_sec: float | None = None
    step_time_s: float | None = None
    data_wait_s: float | None = None
    mfu: float | None = None
    eta_s: float | None = None
    minima: tuple[tuple[int | None, float], ...] = msgspec.field(default=(), name="lows")
    lag_bytes: int | None = None
    log_bytes: int | None = None


class CheckpointCommitted(JournalEvent, frozen=True, kw_only=True, tag="checkpoint_committed"):
    """A checkpoint is complete on disk: by the trainer's own report, or `found` whole in its folder (`sources.checkpoints`).

    Of a found one: its `layout`, the last `number` in its name, when it was written (wall seconds), and whether `step` is
    only the step that had been seen by then, as its name says none.
    """

    attempt: int
    step: int
    path: str
    final: bool = False
    found: bool = False
    layout: str = ""
    number: int | None = None
    written_t: float | None = None
    step_by_time: bool = False


class EvidenceSeen(JournalEvent, frozen=True, kw_only=True, tag="evidence_seen"):
    """A line that a signature matched while the attempt was live. `line` is 1-based in `path`."""

    attempt: int
    failure: FailureClass
    role: str
    text: str
    path: str
    line: int | None = None
    rank: int | None = None


class RankExited(JournalEvent, frozen=True, kw_only=True, tag="rank_exited"):
    """A worker process ended. `exit_code` is negative for a signal, None where it cannot be known."""

    attempt: int
    local_rank: int
    exit_code: int | None = None


class StopIntended(JournalEvent, frozen=True, kw_only=True, tag="stop_intended"):
    """stoker is about to end the attempt: what follows is our doing, not a crash."""

    attempt: int
    why: StopWhy
    by: str
    grace_s: float


class StopStepTaken(JournalEvent, frozen=True, kw_only=True, tag="stop_rung"):
    """A step of the stop sequence (`step`) was taken. `pids`: whom it concerned."""

    attempt: int
    step: StopStep = msgspec.field(name="rung")
    pids: tuple[int, ...] = ()


class LeftWhy(StrEnum):
    """Why processes are left where an attempt ended."""

    AFTER_SUCCESS = "after_success"  # exit 0: they may be meant to stay
    NESTED = "nested"  # a `stoker run` within the job, and what it keeps
    UNKNOWN = "unknown"  # recorded, but nothing shows any more that they are the run's own


class LeftProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that lives on. `command`: the kernel's name for it, 15 bytes at most."""

    pid: int
    command: str = ""


class ProcessesLeft(JournalEvent, frozen=True, kw_only=True, tag="processes_left"):
    """Processes that live on after an attempt and were not signalled."""

    attempt: int
    why: LeftWhy
    processes: tuple[LeftProcess, ...]


class ProcessesGone(JournalEvent, frozen=True, kw_only=True, tag="processes_gone"):
    """The launcher and all its ranks are gone, their logs are still being read. Only where that takes longer than a moment."""

    attempt: int
    exit_code: int | None


class AttemptEnded(JournalEvent, frozen=True, kw_only=True, tag="attempt_ended"):
    """The launcher and all its ranks are gone, and their logs are read. `exit_code`: the launcher's, negative for a signal.

    `memory_kills`: processes of the keeper's control group that the kernel killed for memory while the attempt lived.
    `log_read_bytes`: of the `log_size_bytes` in its logs only so many were read; None: all.
    """

    attempt: int
    exit_code: int | None
    last_step: int | None = None
    memory_kills: int | None = None
    rank_exit_codes: dict[int, int] = msgspec.field(default_factory=dict)
    log_read_bytes: int | None = None
    log_size_bytes: int | None = None


class LogsDated(JournalEvent, frozen=True, kw_only=True, tag="logs_dated"):
    """By the clocks in watched logs: when their job began and ended. None: their lines carry no time.

    `over`: the job was over when it was found, so that no time of the watching is one of its own.
    """

    attempt: int
    began_t: float | None
    over_t: float | None = None
    over: bool = False


class Diagnosed(JournalEvent, frozen=True, kw_only=True, tag="diagnosed"):
    """The verdict on an attempt. `provisional`: given at the first death, before all logs are in."""

    attempt: int
    verdict: Verdict
    provisional: bool = False


class Decided(JournalEvent, frozen=True, kw_only=True, tag="decided"):
    """What policy (or a person, see `by`) settled on after an attempt."""

    attempt: int
    decision: Decision
    by: str = "policy"


class BackoffStarted(JournalEvent, frozen=True, kw_only=True, tag="backoff_started"):
    """The next attempt starts at wall time `until` unless a person acts."""

    attempt: int
    until: float
    delay_s: float


class Held(JournalEvent, frozen=True, kw_only=True, tag="held"):
    """A person decides. `until`: wall time at which the keeper stops waiting."""

    attempt: int
    reason: str
    until: float | None = None


class RequestDone(JournalEvent, frozen=True, kw_only=True, tag="request_done"):
    """A viewer's request was carried out."""

    request_id: str
    request: RequestKind
    by: str
    detail: str = ""


class RequestRefused(JournalEvent, frozen=True, kw_only=True, tag="request_refused"):
    """A viewer's request was not carried out; `reason`: why ("stale" for another attempt's)."""

    request_id: str
    request: str
    by: str
    reason: str


class Advisory(JournalEvent, frozen=True, kw_only=True, tag="advisory"):
    """Something worth knowing while the run is healthy. `code` names its kind, so that it is not repeated."""

    attempt: int
    code: str
    text: str
    rank: int | None = None


class NoteAdded(JournalEvent, frozen=True, kw_only=True, tag="note_added"):
    """A person's note on the timeline."""

    text: str
    by: str


class RunEnded(JournalEvent, frozen=True, kw_only=True, tag="run_ended"):
    """The run is over: the outcome and the exit code that `--no-ui` returns. More follows only where it is continued."""

    outcome: Outcome
    exit_code: int
    reason: str


Event: TypeAlias = (
    RunStarted
    | KeeperStarted
    | KeeperLeft
    | ClockSet
    | PreflightFound
    | LaunchIntended
    | AttemptStarted
    | RankStarted
    | PhaseChanged
    | TrainerReady
    | Progress
    | CheckpointCommitted
    | EvidenceSeen
    | RankExited
    | StopIntended
    | StopStepTaken
    | ProcessesLeft
    | ProcessesGone
    | AttemptEnded
    | LogsDated
    | Diagnosed
    | Decided
    | BackoffStarted
    | Held
    | RequestDone
    | RequestRefused
    | Advisory
    | StacksProbed
    | StallFlagged
    | StacksTaken
    | StallEnded
    | OnlyFlagged
    | HangCountdown
    | HangWithdrawn
    | HangKept
    | HangFound
    | MemoryMeasured
    | ChangePlanned
    | WaitingFor
    | LaunchCleared
    | Recovered
    | ResumeCompared
    | BatchAsked
    | BatchAnswered
    | ProbeStarted
    | ProbeEnded
    | BatchFitted
    | NoteAdded
    | RunEnded
)
