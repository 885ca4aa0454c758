"""The closed set of events in a journal.

One JSON object per line: ``{"kind": ..., "v": 1, "t": wall seconds, ...}``. One node's keeper writes each event once and
never changes it. Events contain kinds and values. Views supply the wording, except for reasons and titles, which policy and
diagnosis write. Samples (GPU, host, per-step metrics) are not events and go to ``series/``. Log lines stay in the
files that torchrun wrote. docs/run-directory.md explains the fields.

`t` is wall time, used for display and for merging nodes. Within a node, events are ordered by line.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from supervisor.job.batch import BatchSpec
from supervisor.job.knobs.measured_knobs import MeasuredSettings, OpenAnswer
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import BatchQuestion, KnobScope, Unread
from supervisor.run.records import (
    Decision,
    Difference,
    FailureClass,
    Finding,
    Precondition,
    Sameness,
    Verdict,
)
from supervisor.text.patterns import whole

SCHEMA_VERSION = 1


class Phase(StrEnum):
    """The phase of a running attempt."""

    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    COMPILING = "compiling"
    STEPPING = "stepping"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"


class StopWhy(StrEnum):
    """Why stoker stopped an attempt. Journaled before the first signal is sent."""

    REQUEST = "request"  # a person asked, through control/
    SIGNAL = "signal"  # the keeper got SIGTERM or Ctrl-C
    RESTART = "restart"  # to relaunch with a different plan
    RANK_DIED = "rank_died"  # one rank died and its peers are stuck
    REQUEUE = "requeue"  # SLURM's warning signal
    HANG = "hang"
    TRIAL = "trial"  # a trial has made its steps, or run out of time
    PLAN_DIFFERS = "plan_differs"  # the first steps did not use the planned batch
    NOT_RESUMED = "not_resumed"  # the attempt started below the checkpoint that it was to resume from


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
    """The requests that a viewer can send to a keeper."""

    STOP = "stop"
    STOP_NOW = "stop_now"
    RESTART = "restart"
    RESTART_WITH = "restart_with"
    START_NOW = "start_now"
    HOLD = "hold"
    STACKS = "stacks"
    PROFILE = "profile"
    KEEP_WAITING = "keep_waiting"
    ANSWER = "answer"
    NOTE = "note"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base class of all events. `t` is wall-clock seconds since the epoch."""

    t: float
    v: int = SCHEMA_VERSION


class AttemptEvent(Event, frozen=True, kw_only=True):
    """Base class of events about a single attempt."""

    attempt: int


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """The first line of a journal. `mode` is "launched", or "observed" for a keeper without a child process."""

    run_id: str
    name: str
    mode: str
    host: str
    total_steps: int | None = None
    world_size: int | None = None
    source: str | None = None


class KeeperStarted(Event, frozen=True, kw_only=True, tag="keeper_started"):
    """A keeper took the lock. `adopted` means it took over from a dead keeper. `host` is set for every keeper but the first.

    `boot_id` identifies the machine's boot, because pids and start times are meaningless across boots.
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


class KeeperLeft(Event, frozen=True, kw_only=True, tag="keeper_left"):
    """The keeper released the lock on purpose."""

    why: str


class PreflightFound(Event, frozen=True, kw_only=True, tag="preflight_found"):
    """One result of a pre-flight check."""

    finding: Finding


class GpuFound(Event, frozen=True, kw_only=True, tag="gpu_found"):
    """A GPU sampled in the `gpu` series, identified by its NVML index. None means the driver did not report the value."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: int | None = None


class LaunchIntended(AttemptEvent, frozen=True, kw_only=True, tag="launch_intended"):
    """Attempt `attempt` is about to be spawned with this plan (also in attempts/<n>/plan.json). `resume` is the flag that makes the script resume, if any."""

    argv: tuple[str, ...]
    reason: str
    batch: BatchSpec | None = None
    resume: str | None = None
    script_hash: str | None = None
    resume_copy: str | None = None
    resume_at: int | None = None


class AttemptStarted(AttemptEvent, frozen=True, kw_only=True, tag="attempt_started"):
    """The launcher is running. `pid` and `start_time` (seconds since boot) identify its process until the next boot."""

    pid: int
    start_time: float


class RankStarted(AttemptEvent, frozen=True, kw_only=True, tag="rank_started"):
    """A worker process was found on this node. Log paths are relative to the attempt folder."""

    local_rank: int
    pid: int | None = None
    start_time: float | None = None
    rank: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class PhaseChanged(AttemptEvent, frozen=True, kw_only=True, tag="phase_changed"):
    """The attempt entered a phase."""

    phase: Phase
    step: int | None = None


class TrainerReady(AttemptEvent, frozen=True, kw_only=True, tag="trainer_ready"):
    """Telemetry that a trainer sent before its first forward pass. `memory_base_bytes` is the memory in use at that point."""

    resumed_step: int | None = None
    memory_base_bytes: int | None = None


class BatchMeasured(AttemptEvent, frozen=True, kw_only=True, tag="batch_measured"):
    """The batch as measured by the instrumentation. Written again when an answer changes. None means unknown.

    `micro_batch` is the number of samples in one forward pass of one rank, or if `unit` is "tokens", the maximum number of
    tokens. `accumulation` is the number of micro-batches per step. `setting` is the option, variable or key for the
    micro-batch, and `scope` is what it counts (``per_rank``, ``global``). `accumulation_setting` is a name, ``derived`` (it
    follows from a global batch) or ``none``. `how` gives the rule behind each answer. `candidates` are settings to ask
    about if several fit. `counts_accumulation` means that `setting` is the total for a step, and
    `accumulation_counts_ranks` that the accumulation setting counts the passes of all ranks. `total_setting` and `total`
    are the basis of a derived accumulation. `refusal` says why the batch would not be changed after running out of memory,
    and `help` what would allow it. `sequence_length` (in tokens) and `sample_shape` describe one sample, if all are alike.
    `planned_steps` is the number of optimizer steps in the whole training run, and `logged_step` the number in one step of
    the counter that the script prints. `counts_steps` means that the script prints no step, so optimizer steps are shown.
    `argv` is rank 0's full command line, and `words` all the words in its settings. `resume`, `resume_setting`,
    `resume_how` and `resume_candidates` say how the script resumes; see `job.knobs.resume_settings.ResumeWay`. `asks` and
    `answers` are what the user can answer and the result of each answer. `has_loaded` means that a checkpoint or a
    pretrained model was loaded. `outputs` are the folders named in output settings.
    """

    micro_batch: int | None = None
    accumulation: int | None = None
    world_size: int | None = None
    global_batch: int | None = None
    unit: str = ""
    sequence_length: int | None = None
    sample_shape: tuple[int, ...] = ()
    planned_steps: int | None = None
    logged_step: float | None = None
    counts_steps: bool = False
    setting: str | None = None
    scope: str | None = None
    accumulation_setting: str | None = None
    how: dict[str, str] = {}
    candidates: tuple[str, ...] = ()
    counts_accumulation: bool = False
    accumulation_counts_ranks: bool = False
    total_setting: str | None = None
    total: int | None = None
    refusal: str = ""
    help: str = ""
    argv: tuple[str, ...] = ()
    words: dict[str, tuple[str, ...]] = {}
    resume: str | None = None
    resume_setting: str | None = None
    resume_how: str = ""
    resume_candidates: tuple[str, ...] = ()
    asks: Unread | None = None
    answers: tuple[OpenAnswer, ...] = ()
    has_loaded: bool = False
    outputs: tuple[str, ...] = ()

    @property
    def settings(self) -> MeasuredSettings:
        """The measurements, in the form that `job` uses."""
        total = (self.total_setting, self.total) if self.total_setting and self.total else None
        return MeasuredSettings(
            batch=self.batch,
            setting=self.setting,
            scope=KnobScope(self.scope) if self.scope else None,
            counts_accumulation=self.counts_accumulation,
            accumulation=self.accumulation_setting,
            accumulation_counts_ranks=self.accumulation_counts_ranks,
            total=total,
            refusal=self.refusal,
            help=self.help,
            asks=self.asks,
            answers=self.answers,
            micro=None if self.unit else self.micro_batch,
            passes=self.accumulation,
            ranks=self.world_size,
        )

    @property
    def batch(self) -> BatchSpec | None:
        """The batch, if all of its parts are known."""
        if not (self.micro_batch and self.accumulation and self.world_size) or self.unit:
            return None
        return BatchSpec(self.micro_batch, self.accumulation, self.world_size)


class PlanConfirmed(AttemptEvent, frozen=True, kw_only=True, tag="plan_confirmed"):
    """The first steps of a restart matched the plan. `planned` describes the batch; `resume` is the checkpoint that was loaded, if any."""

    planned: str = ""
    resume: str | None = None


class PlanDiffers(AttemptEvent, frozen=True, kw_only=True, tag="plan_differs"):
    """A restart's first steps did not match the plan, so the attempt is stopped. If `of_resume`, the checkpoint differed, not the batch."""

    planned: str
    measured: str
    why: str = ""
    of_resume: bool = False
    wrong: Unread | None = None

    @property
    def text(self) -> str:
        """The difference in one line."""
        if self.of_resume:
            return f"did not resume: {self.measured}"
        return f"planned {self.planned}, measured {self.measured}" + (f": {self.why}" if self.why else "")


class Progress(AttemptEvent, frozen=True, kw_only=True, tag="progress"):
    """Progress, reported at most once a second. Any field may be unknown. `minima` holds the running minima (step, loss) since the last event.

    `total_steps` is 0 if the known total turned out to belong to another counter. `epoch_step` and `epoch_steps` are
    the values a log prints if its counter restarts each epoch; `step` then counts across epochs. `lag_bytes` is how
    many of the `log_bytes` are unread. It is set only while reading is behind, then reported at least every 10 s.
    """

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    epoch_step: int | None = None
    epoch_steps: int | None = None
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


class CheckpointCommitted(AttemptEvent, frozen=True, kw_only=True, tag="checkpoint_committed"):
    """A checkpoint is complete on disk: the trainer reported it, or it was `found` complete in its folder (`sources.checkpoint_layouts`)."""

    step: int
    path: str
    final: bool = False
    found: bool = False
    layout: str = ""
    number: int | None = None
    written_t: float | None = None
    step_by_time: bool = False


class CheckpointKept(AttemptEvent, frozen=True, kw_only=True, tag="checkpoint_kept"):
    """Before a launch, the checkpoint that `attempt` resumes from was copied to `copy` (an absolute path), or was not, for the reason `why`."""

    step: int
    path: str
    copy: str = ""
    why: str = ""


class ResumeMissed(AttemptEvent, frozen=True, kw_only=True, tag="resume_missed"):
    """The attempt should have resumed from `step` but started earlier, at `began`, so it is stopped."""

    step: int
    began: int
    certain: bool = False


class EvidenceSeen(AttemptEvent, frozen=True, kw_only=True, tag="evidence_seen"):
    """A log line that matched a signature while the attempt was running. `line` is 1-based in `path`."""

    failure: FailureClass
    role: str
    text: str
    path: str
    line: int | None = None
    rank: int | None = None


class RankExited(AttemptEvent, frozen=True, kw_only=True, tag="rank_exited"):
    """A worker process exited. `exit_code` is negative for a signal and None if unknown."""

    local_rank: int
    exit_code: int | None = None


class FailureSign(StrEnum):
    """How stoker knows that a rank is failing while its attempt is still running."""

    EXITING = "exiting"  # the rank wrote an error, and its interpreter is shutting down
    GONE = "gone"  # the rank's process ended with an error or by a signal


class RankFailing(AttemptEvent, frozen=True, kw_only=True, tag="rank_failing"):
    """The first rank to fail in an attempt, reported before the launcher exits and before the verdict."""

    local_rank: int
    sign: FailureSign
    rank: int | None = None
    exit_code: int | None = None
    failure: FailureClass | None = None
    text: str = ""
    path: str = ""
    line: int | None = None


CTRL_C = "Ctrl-C"
"""`StopIntended.by` for Ctrl-C in a foreground keeper. A second Ctrl-C kills the attempt."""


class StopIntended(AttemptEvent, frozen=True, kw_only=True, tag="stop_intended"):
    """stoker is about to stop the attempt, so what follows is not a crash."""

    why: StopWhy
    by: str
    grace_s: float


class StopStepTaken(AttemptEvent, frozen=True, kw_only=True, tag="stop_rung"):
    """A step of the stop sequence was taken. `pids` are the affected processes, and `uninterruptible` those stuck in the kernel."""

    step: StopStep = msgspec.field(name="rung")
    pids: tuple[int, ...] = ()
    uninterruptible: tuple[int, ...] = ()

    @property
    def labels(self) -> str:
        """The pids, marking any process that is stuck in the kernel."""
        return ", ".join(f"{pid} (state D)" if pid in self.uninterruptible else str(pid) for pid in self.pids)


class LeftWhy(StrEnum):
    """Why processes were left running after an attempt."""

    AFTER_SUCCESS = "after_success"  # exit 0: the processes may be intentional
    NESTED = "nested"  # a nested `stoker run` and its processes
    UNKNOWN = "unknown"  # recorded, but no longer known to belong to the run


class LeftProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is still running. `command` is its name in the kernel, at most 15 bytes."""

    pid: int
    command: str = ""


class ProcessesLeft(AttemptEvent, frozen=True, kw_only=True, tag="processes_left"):
    """Processes that are still running after an attempt and were not signaled."""

    why: LeftWhy
    processes: tuple[LeftProcess, ...]


class ProcessesGone(AttemptEvent, frozen=True, kw_only=True, tag="processes_gone"):
    """The launcher and all its ranks have exited, but their logs are still being read. Written only if that takes a while."""

    exit_code: int | None


class AttemptEnded(AttemptEvent, frozen=True, kw_only=True, tag="attempt_ended"):
    """The launcher and all its ranks exited, and their logs were read. `exit_code` is the launcher's, negative for a signal.

    `memory_kills` is how many processes in the keeper's cgroup the kernel OOM-killed during the attempt.
    """

    exit_code: int | None
    exit_t: float | None = None
    last_step: int | None = None
    memory_kills: int | None = None
    rank_exit_codes: dict[int, int] = msgspec.field(default_factory=dict)
    log_read_bytes: int | None = None
    log_size_bytes: int | None = None


class LogsDated(AttemptEvent, frozen=True, kw_only=True, tag="logs_dated"):
    """When a watched job began and ended, according to the timestamps in its logs. None means that there is no timestamp.

    `over` means that the job had ended before stoker attached. If `copied`, the log is a copy with a new mtime, and
    `over_t` is its last timestamp. `day_guessed` means that the time of day is right but the date is a guess.
    """

    began_t: float | None
    over_t: float | None = None
    over: bool = False
    day_guessed: bool = False
    copied: bool = False


class LogQuiet(AttemptEvent, frozen=True, kw_only=True, tag="log_quiet"):
    """A watched log has not grown since `since_t` (wall-clock seconds; None if it is growing), with no sign that its job ended."""

    since_t: float | None = None


class Diagnosed(AttemptEvent, frozen=True, kw_only=True, tag="diagnosed"):
    """The verdict on an attempt. If `provisional`, it was reached when the first rank died, before all logs had been read."""

    verdict: Verdict
    provisional: bool = False


class Decided(AttemptEvent, frozen=True, kw_only=True, tag="decided"):
    """The decision after an attempt, made by the policy or by the user named in `by`."""

    decision: Decision
    by: str = "policy"


class BackoffStarted(AttemptEvent, frozen=True, kw_only=True, tag="backoff_started"):
    """The next attempt starts at wall time `until`, unless the user intervenes."""

    until: float
    delay_s: float


class Held(AttemptEvent, frozen=True, kw_only=True, tag="held"):
    """The run is waiting for the user to decide. `until` is the wall-clock time at which the keeper stops waiting."""

    reason: str
    until: float | None = None


class RequestDone(Event, frozen=True, kw_only=True, tag="request_done"):
    """A viewer's request was carried out."""

    request_id: str
    request: RequestKind
    by: str
    detail: str = ""


class RequestRefused(Event, frozen=True, kw_only=True, tag="request_refused"):
    """A viewer's request was refused. `reason` is "stale" if it was for another attempt."""

    request_id: str
    request: str
    by: str
    reason: str


ON_OOM = "oom_"
"""Prefix for the codes of advisories that say what an out-of-memory failure would do (`restarts`, `ends`)."""


class Advisory(AttemptEvent, frozen=True, kw_only=True, tag="advisory"):
    """Advice about a healthy run. Each `code` is reported only once."""

    code: str
    text: str
    rank: int | None = None


class SlowRankFound(AttemptEvent, frozen=True, kw_only=True, tag="slow_rank_found"):
    """The rank that the others wait for at every step (`policy.health.straggler`), or None. Journaled on every change."""

    rank: int | None = None
    lost_s: float = 0.0
    step_s: float = 0.0
    unclear: bool = False


class LossNotFinite(AttemptEvent, frozen=True, kw_only=True, tag="loss_not_finite"):
    """The loss became nan, inf or -inf (`value`) at `step`. Journaled only once per attempt. `last` is the loss before that."""

    value: str
    step: int | None = None
    rank: int | None = None
    last: float | None = None


class LossFinite(AttemptEvent, frozen=True, kw_only=True, tag="loss_finite"):
    """The loss is finite again at `step`, for the first time since `LossNotFinite`."""

    loss: float
    step: int | None = None


_LOSS_RENAMED = "loss_renamed_"


def renamed_loss(advisory: Advisory) -> tuple[int, str] | None:
    """Return the step at which the loss was renamed in the log and its new name, or None if it was not renamed."""
    if not advisory.code.startswith(_LOSS_RENAMED):
        return None
    step, _, name = advisory.code.removeprefix(_LOSS_RENAMED).partition("_")
    return (whole(step), name) if step.isdecimal() else None


class NodeSight(StrEnum):
    """What the leader saw of another node's keeper."""

    JOINED = "joined"
    SILENT = "silent"  # no heartbeat, but training may well continue there
    BACK = "back"
    ENDED = "ended"  # the node's part of the attempt has ended
    LEFT = "left"


class NodeSeen(Event, frozen=True, kw_only=True, tag="node_seen"):
    """In node 0's journal: another node joined, fell silent, came back, finished its part of an attempt, or left."""

    node: int
    sight: NodeSight
    host: str = ""
    attempt: int | None = None
    exit_code: int | None = None
    stop: StopWhy | None = None
    by: str = ""


def on_node(node: int, by: str) -> str:
    """Return how node 0 refers to a user who stopped the run from another node."""
    return f"node {node}: {by}"


class NoteAdded(Event, frozen=True, kw_only=True, tag="note_added"):
    """A note that a user added to the timeline."""

    text: str
    by: str


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The run has ended, with its outcome and the exit code of `--no-ui`. More events follow only if it is continued."""

    outcome: Outcome
    exit_code: int
    reason: str


# -- the health of a live attempt: stalls, stacks, hangs


class StacksProbed(AttemptEvent, frozen=True, kw_only=True, tag="stacks_probed"):
    """Where the ranks' stacks came from, and why no better source was available. Found only in older journals."""

    source: str
    note: str = ""


class StallFlagged(AttemptEvent, frozen=True, kw_only=True, tag="stall_flagged"):
    """No progress since `since`, which is longer than normal for this phase of this run. No action has been taken yet.

    `act_s` is how long it may last before the attempt is stopped (None if forever). `pace_s` is the 99th percentile (0 if
    there is only the user's limit).
    """

    since: float
    waited_s: float
    stage: str
    pace_s: float
    flag_s: float
    act_s: float | None = None


class RanksAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that were doing the same thing at the same line when stacks were taken.

    `doing` is a value of `diagnosis.hang.stack_groups.Doing`, and `what` is e.g. ``in all_reduce``. `line_at` is the line
    in the user's own code. `lines` is the 1-based line of that frame in the artifact, for each rank.
    """

    ranks: tuple[int, ...]
    doing: str
    what: str
    line_at: str | None = None
    lines: tuple[int, ...] = ()


class StacksTaken(AttemptEvent, frozen=True, kw_only=True, tag="stacks_taken"):
    """A round of stacks from all ranks. `text` is a one-line summary. `odd` lists the ranks that keep the others waiting.

    `artifact` is the path of the file with all stacks, relative to the run directory. `groups` holds the ranks grouped by
    activity (only the first groups if there are many).
    """

    text: str
    odd: tuple[int, ...] = ()
    line_at: str | None = None
    artifact: str | None = None
    source: str = ""
    collective: str | None = None
    groups: tuple[RanksAt, ...] = ()


class StallEnded(AttemptEvent, frozen=True, kw_only=True, tag="stall_ended"):
    """A flagged stall ended on its own because the run is making progress again."""

    stalled_s: float


class OnlyFlagged(AttemptEvent, frozen=True, kw_only=True, tag="only_flagged"):
    """Why a stalled attempt is still running: a `rule` of `policy.health.ending`, with `why` in words. Journaled on change."""

    rule: str
    why: str
    until_s: float | None = None


class HangCountdown(AttemptEvent, frozen=True, kw_only=True, tag="hang_countdown"):
    """Every rule says the stall is a hang. Unless the user keeps waiting, the attempt is stopped at wall time `until`, in `left_s`."""

    until: float
    left_s: float
    text: str
    rule: str


class HangWithdrawn(AttemptEvent, frozen=True, kw_only=True, tag="hang_withdrawn"):
    """A countdown was canceled because a rule now forbids stopping the attempt; see `OnlyFlagged`."""

    rule: str
    why: str


class HangKept(AttemptEvent, frozen=True, kw_only=True, tag="hang_kept"):
    """The user chose to keep waiting, so the attempt will never be stopped for this stall."""

    by: str


class HangFound(AttemptEvent, frozen=True, kw_only=True, tag="hang_found"):
    """The stall is a hang, so the attempt is stopped. Journaled just before the stop. `line` locates the first odd rank in `artifact`."""

    waited_s: float
    act_s: float
    text: str
    ranks: tuple[int, ...] = ()
    line_at: str | None = None
    artifact: str | None = None
    line: int | None = None
    collective: str | None = None
    groups: tuple[RanksAt, ...] = ()
    rule: str = ""


class ClockSet(Event, frozen=True, kw_only=True, tag="clock_set"):
    """The machine's clock was set and is now `ahead_s` ahead of this keeper's event times, which ignore the change."""

    ahead_s: float


# -- between a failure and the next good step, and the probes before a first launch


class MemoryMeasured(AttemptEvent, frozen=True, kw_only=True, tag="memory_measured"):
    """Whether an attempt's micro-batch fit in memory, and the peak memory of a rank."""

    trial: MemoryTrial


class ChangePlanned(AttemptEvent, frozen=True, kw_only=True, tag="change_planned"):
    """The diff between the previous launch and the next one, as lines that begin with "-" or "+". Secrets are redacted."""

    lines: tuple[str, ...]


class BatchAsked(AttemptEvent, frozen=True, kw_only=True, tag="batch_asked"):
    """A question about a batch value that could not be read, asked so that a restart can use a smaller batch."""

    question: BatchQuestion


class BatchAnswered(Event, frozen=True, kw_only=True, tag="batch_answered"):
    """An answer and who gave it. `batch` is the batch implied by the answer so far. `trial` is the trial number if no user answered."""

    question: BatchQuestion
    value: str
    by: str = ""
    batch: BatchSpec | None = None
    day: str = ""
    trial: int | None = None


class WaitingFor(AttemptEvent, frozen=True, kw_only=True, tag="waiting_for"):
    """The next launch is waiting for a precondition. `text` names it and says what is blocking it."""

    precondition: Precondition = msgspec.field(name="proof")
    text: str


class LaunchCleared(AttemptEvent, frozen=True, kw_only=True, tag="launch_cleared"):
    """All preconditions for the next launch were met, or the wait timed out."""

    waited_s: float
    text: str = ""


class Recovered(AttemptEvent, frozen=True, kw_only=True, tag="recovered"):
    """The time from the failure of attempt `after` to the next completed step, which `attempt` took."""

    after: int
    total_s: float


class ResumeCompared(AttemptEvent, frozen=True, kw_only=True, tag="resume_compared"):
    """Whether a resumed attempt continues the same training run, judging by its logged values. Only its latest event counts.

    See `policy.same_training`. `difference` says how it differs, and `text` adds the numbers. Older journals also contain
    `numbers` (keyed by name), the number of steps compared one by one (`steps_twice`) or beyond the earlier last step
    (`steps_new`), and the arguments with which the user `asked` for this.
    """

    result: Sameness
    difference: Difference | None = None
    text: str = ""
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    steps_twice: int = 0
    steps_new: int = 0
    asked: str = ""


class ProbeStarted(Event, frozen=True, kw_only=True, tag="probe_started"):
    """A short launch to test whether `micro_batch` fits. Probes are numbered from 1, and their files are in probes/<n>."""

    probe: int
    micro_batch: int
    argv: tuple[str, ...]


class ProbeEnded(Event, frozen=True, kw_only=True, tag="probe_ended"):
    """A probe ended. `fitted` is None if it failed for a reason (`why`) unrelated to memory."""

    probe: int
    micro_batch: int
    fitted: bool | None
    why: str
    took_s: float
    steps: int = 0


class BatchFitted(Event, frozen=True, kw_only=True, tag="batch_fitted"):
    """The outcome of the probes. The first launch uses `batch`, or the job's own batch if `batch` is None."""

    probes: int
    batch: BatchSpec | None
    text: str


KINDS: tuple[type[Event], ...] = tuple(
    kind for base in (Event, AttemptEvent) for kind in base.__subclasses__() if kind is not AttemptEvent
)


def is_share_of_epochs(share: float, epoch: float, epochs: float) -> bool:
    """Check whether `share` is a fraction of the whole run and not of one epoch, judging by the epoch (from 0 or 1)."""
    return abs(share - epoch / epochs) <= 1.5 / epochs
