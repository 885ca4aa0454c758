"""The closed set of events that a journal holds.

One JSON object a line: ``{"kind": ..., "v": 1, "t": wall seconds, ...}``. An event is written by the
keeper of one node and never changed. It carries kinds and values; its wording is the views' business, except for
reasons and titles, which policy and diagnosis write. Samples (GPU, host, per-step metrics) are not events: they go to
``series/``; log lines stay in the files that torchrun wrote.

`t` is wall time, for display and for joining nodes; order within a node is the order of lines.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

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
from supervisor.text.numbers import whole

SCHEMA_VERSION = 1


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
    TRIAL = "trial"  # a trial has made its steps, or run out of time
    PLAN_DIFFERS = "plan_differs"  # its first steps had another batch than was planned
    NOT_RESUMED = "not_resumed"  # it began below the checkpoint that it was to go on from


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
    PROFILE = "profile"
    KEEP_WAITING = "keep_waiting"
    ANSWER = "answer"
    NOTE = "note"


class JournalEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base of all events. `t`: wall-clock seconds since the epoch."""

    t: float
    v: int = SCHEMA_VERSION


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
    was started; `slurm_job`: within which job. `continued_by`: who had it start the next attempt of a run that had ended or was held.
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


class GpuFound(JournalEvent, frozen=True, kw_only=True, tag="gpu_found"):
    """A card that the series `gpu` has samples of, under NVML's index. None: the driver does not tell."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: int | None = None


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
    """The launcher runs. `pid` and `start_time` (seconds since boot) identify its process uniquely until the next boot."""

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


class BatchMeasured(JournalEvent, frozen=True, kw_only=True, tag="batch_measured"):
    """What the instrumentation measured of the batch; written again when an answer changes. None: not known.

    `micro_batch`: samples of one forward of one rank; with `unit` "tokens", the most tokens of it. `accumulation`: micro-batches a step. `setting`: the option, variable or key that
    makes the micro-batch, `scope` what it counts (``per_rank``, ``global``). `accumulation_setting`: a name, ``derived`` (it follows from
    a global batch) or ``none``. `how`: the rule behind each answer. `candidates`: settings to ask about, where several fit.
    `counts_accumulation`: `setting` is the total of a step. `accumulation_counts_ranks`: the accumulation's setting counts the passes of
    all ranks. `total_setting` and `total`: what a derived accumulation follows from. `refusal`: why an out-of-memory failure would
    change nothing, `help` what would let it. `sequence_length` in tokens, and `sample_shape`, of one sample, where all have the same.
    `planned_steps`: optimizer steps of the whole training. `logged_step`: optimizer steps in one step of the counter that the script
    prints. `counts_steps`: it prints none, and the optimizer's steps are shown. `argv`: the whole command line of rank 0, `words` all words of each setting there.
    `resume`, `resume_setting`, `resume_how`, `resume_candidates`: how the script resumes, as `job.knobs.resume_settings.ResumeWay`.
    `asks` and `answers`: what of this a person may answer, and what each answer would lead to. `has_loaded`: a checkpoint or a pretrained
    model was loaded. `outputs`: folders that settings for outputs name.
    """

    attempt: int
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
        """The same as `job` takes it."""
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
        """The batch, where all of its parts are known."""
        if not (self.micro_batch and self.accumulation and self.world_size) or self.unit:
            return None
        return BatchSpec(self.micro_batch, self.accumulation, self.world_size)


class PlanConfirmed(JournalEvent, frozen=True, kw_only=True, tag="plan_confirmed"):
    """The first steps of a restart had what was planned. `planned`: in words; `resume`: the checkpoint that was seen to be loaded, if any."""

    attempt: int
    planned: str = ""
    resume: str | None = None


class PlanDiffers(JournalEvent, frozen=True, kw_only=True, tag="plan_differs"):
    """The first steps of a restart had something else than was planned, for which the attempt is ended. All three in words; `why` may be empty.

    `of_resume`: it was not the batch that differed, but the checkpoint. `wrong`: the answer of which that shows.
    """

    attempt: int
    planned: str
    measured: str
    why: str = ""
    of_resume: bool = False
    wrong: Unread | None = None

    @property
    def text(self) -> str:
        """In one line."""
        if self.of_resume:
            return f"did not resume: {self.measured}"
        return f"planned {self.planned}, measured {self.measured}" + (f": {self.why}" if self.why else "")


class Progress(JournalEvent, frozen=True, kw_only=True, tag="progress"):
    """One a second at most; each field may be unknown. `minima`: step and loss of each running minimum since the one before.

    `total_steps`: 0 where the one that was known is of something else.
    `epoch_step` of `epoch_steps`: what a log prints whose counter begins again with each epoch; `step` then counts on over the epochs.
    `lag_bytes`: how many of the `log_bytes` in the logs are not read yet; only while the reading is behind, and then at least every
    10 s, even if nothing else is new.
    """

    attempt: int
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


class CheckpointKept(JournalEvent, frozen=True, kw_only=True, tag="checkpoint_kept"):
    """Before its launch: the checkpoint that `attempt` is to resume from has a `copy` (absolute), or none, for the reason `why`.

    The copy is removed once the attempt commits a newer one, or the run has succeeded.
    """

    attempt: int
    step: int
    path: str
    copy: str = ""
    why: str = ""


class ResumeMissed(JournalEvent, frozen=True, kw_only=True, tag="resume_missed"):
    """The attempt was to go on from the checkpoint of `step` and began at `began`, below it: it is ended for it.

    `certain`: the script is known to count its steps on over restarts; otherwise they may begin at 0 at each start.
    """

    attempt: int
    step: int
    began: int
    certain: bool = False


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


class FailureSign(StrEnum):
    """How it is known that a rank fails, while its attempt lives."""

    EXITING = "exiting"  # it wrote an error, and its interpreter is shutting down
    GONE = "gone"  # its process ended with an error or by a signal


class RankFailing(JournalEvent, frozen=True, kw_only=True, tag="rank_failing"):
    """The first rank of an attempt that fails, told at once: the launcher has yet to end, and the verdict is yet to come.

    `text`: the error line that the rank wrote last before it, at 1-based `line` of `path`; empty where it wrote none.
    """

    attempt: int
    local_rank: int
    sign: FailureSign
    rank: int | None = None
    exit_code: int | None = None
    failure: FailureClass | None = None
    text: str = ""
    path: str = ""
    line: int | None = None


CTRL_C = "Ctrl-C"
"""`StopIntended.by` of the keyboard of a keeper in the foreground; a second one kills."""


class StopIntended(JournalEvent, frozen=True, kw_only=True, tag="stop_intended"):
    """stoker is about to end the attempt: what follows is our doing, not a crash."""

    attempt: int
    why: StopWhy
    by: str
    grace_s: float


class StopStepTaken(JournalEvent, frozen=True, kw_only=True, tag="stop_rung"):
    """A step of the stop sequence (`step`) was taken. `pids`: whom it concerned.

    `uninterruptible`: those of the survivors that wait in the kernel (state D), where no signal reaches them.
    """

    attempt: int
    step: StopStep = msgspec.field(name="rung")
    pids: tuple[int, ...] = ()
    uninterruptible: tuple[int, ...] = ()

    @property
    def labels(self) -> str:
        """The pids, those that wait in the kernel with their state."""
        return ", ".join(f"{pid} (state D)" if pid in self.uninterruptible else str(pid) for pid in self.pids)


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
    `exit_t`: wall seconds at which the command ended, by its launcher: `t` is when a keeper learnt of it, maybe a later one.
    """

    attempt: int
    exit_code: int | None
    exit_t: float | None = None
    last_step: int | None = None
    memory_kills: int | None = None
    rank_exit_codes: dict[int, int] = msgspec.field(default_factory=dict)
    log_read_bytes: int | None = None
    log_size_bytes: int | None = None


class LogsDated(JournalEvent, frozen=True, kw_only=True, tag="logs_dated"):
    """By the clocks in watched logs: when their job began and ended. None: their lines carry no time.

    `over`: the job was over when it was found, so no time at which it was watched is one of its own.
    `copied`: the last change of the log was that of its copying, so `over_t` is when it was written last.
    `day_guessed`: the clocks are right, their day is not known.
    """

    attempt: int
    began_t: float | None
    over_t: float | None = None
    over: bool = False
    day_guessed: bool = False
    copied: bool = False


class LogQuiet(JournalEvent, frozen=True, kw_only=True, tag="log_quiet"):
    """A watched log has not grown since `since_t` (wall seconds), and nothing shows that its job is over.

    None: it grows, as the first look showed, or again, also after what looked like the end of the job.
    """

    attempt: int
    since_t: float | None = None


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


ON_OOM = "oom_"
"""Before `restarts` or `ends`: the code of an advisory on what an out-of-memory failure would do."""


class Advisory(JournalEvent, frozen=True, kw_only=True, tag="advisory"):
    """Something worth knowing while the run is healthy. `code` names its kind, so that it is not repeated."""

    attempt: int
    code: str
    text: str
    rank: int | None = None


class SlowRankFound(JournalEvent, frozen=True, kw_only=True, tag="slow_rank_found"):
    """The rank that the others wait for in every step (`policy.health.straggler`), journalled when it becomes another one.

    `lost_s` of every step of `step_s`; 0: only its device shows it. `rank` None: there is none, or (`unclear`) the step times that
    ranks print differ and do not show which one is slow.
    """

    attempt: int
    rank: int | None = None
    lost_s: float = 0.0
    step_s: float = 0.0
    unclear: bool = False


class LossNotFinite(JournalEvent, frozen=True, kw_only=True, tag="loss_not_finite"):
    """The loss is no number any more: `value` is nan, inf or -inf, at `step`. Journalled once an attempt, the first time.

    `last`: the loss before it. `rank`: the one that logged it, where ranks are known.
    """

    attempt: int
    value: str
    step: int | None = None
    rank: int | None = None
    last: float | None = None


class LossFinite(JournalEvent, frozen=True, kw_only=True, tag="loss_finite"):
    """The loss is a number again, at `step`, for the first time after `LossNotFinite`."""

    attempt: int
    loss: float
    step: int | None = None


_LOSS_RENAMED = "loss_renamed_"


def loss_renamed_code(name: str, step: float) -> str:
    """The code of an advisory that the log prints a loss of another name from a step on."""
    return f"{_LOSS_RENAMED}{step:.0f}_{name}"


def renamed_loss(advisory: Advisory) -> tuple[int, str] | None:
    """From which step on the log prints another loss, and its name; None where an advisory is about something else."""
    if not advisory.code.startswith(_LOSS_RENAMED):
        return None
    step, _, name = advisory.code.removeprefix(_LOSS_RENAMED).partition("_")
    return (whole(step), name) if step.isdecimal() else None


class NodeSight(StrEnum):
    """What the leader saw of another node's keeper."""

    JOINED = "joined"
    SILENT = "silent"  # no sign of life: training there continues, for all that is known
    BACK = "back"
    ENDED = "ended"  # its part of the attempt has ended
    LEFT = "left"


class NodeSeen(JournalEvent, frozen=True, kw_only=True, tag="node_seen"):
    """In node 0's journal: another node joined, fell silent, came back, ended its part of an attempt, or left.

    `exit_code`: of its launcher. `stop` and `by`: why it was stopped there and by whom, if somebody did.
    """

    node: int
    sight: NodeSight
    host: str = ""
    attempt: int | None = None
    exit_code: int | None = None
    stop: StopWhy | None = None
    by: str = ""

    @property
    def stopped_by(self) -> str:
        """Who stopped its part, as the run's own stop has it."""
        return on_node(self.node, self.by)


def on_node(node: int, by: str) -> str:
    """Somebody on another node, as node 0 names who stopped the run."""
    return f"node {node}: {by}"


class NoteAdded(JournalEvent, frozen=True, kw_only=True, tag="note_added"):
    """A person's note on the timeline."""

    text: str
    by: str


class RunEnded(JournalEvent, frozen=True, kw_only=True, tag="run_ended"):
    """The run is over: the outcome and the exit code that `--no-ui` returns. More follows only where it is continued."""

    outcome: Outcome
    exit_code: int
    reason: str


# -- the health of a live attempt: stalls, stacks, hangs


class StacksProbed(JournalEvent, frozen=True, kw_only=True, tag="stacks_probed"):
    """Where the ranks' stacks come from: "py-spy", "faulthandler" or "proc" (older journals: "debug-server", too); `note`: why from nothing better."""

    attempt: int
    source: str
    note: str = ""


class StallFlagged(JournalEvent, frozen=True, kw_only=True, tag="stall_flagged"):
    """No progress for longer than this phase of this run usually takes. Nothing is done about it yet.

    `since`: wall time of the last progress; of the last line where `stage` is log. `stage`: what the pace was learned from (step, log,
    start, compile, evaluation, checkpoint). `act_s`: the length at which it would be ended; None: never. `pace_s`: the 99th
    percentile, 0 where only a person's own limit is known.
    """

    attempt: int
    since: float
    waited_s: float
    stage: str
    pace_s: float
    flag_s: float
    act_s: float | None = None


class RanksAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that did the same at the same line when stacks were taken.

    `doing`: a value of `diagnosis.hang.stack_groups.Doing`. `what`: ``in all_reduce``. `line_at`: the user's own line. `lines`: of the
    artifact, 1-based, where that frame of each of them stands.
    """

    ranks: tuple[int, ...]
    doing: str
    what: str
    line_at: str | None = None
    lines: tuple[int, ...] = ()


class StacksTaken(JournalEvent, frozen=True, kw_only=True, tag="stacks_taken"):
    """A round of stacks of all ranks. `text`: what the ranks are doing, in one line; `odd`: those that keep the others waiting.

    `line_at`: the odd one's own line. `artifact`: the text of all stacks, relative to the run directory. `source`:
    see `StacksProbed`. `collective`: what a flight recorder or NCCL's RAS adds. `groups`: the ranks by what they do, of very many
    the first.
    """

    attempt: int
    text: str
    odd: tuple[int, ...] = ()
    line_at: str | None = None
    artifact: str | None = None
    source: str = ""
    collective: str | None = None
    groups: tuple[RanksAt, ...] = ()


class StallEnded(JournalEvent, frozen=True, kw_only=True, tag="stall_ended"):
    """A flagged stall ended by itself: there is progress again."""

    attempt: int
    stalled_s: float


class OnlyFlagged(JournalEvent, frozen=True, kw_only=True, tag="only_flagged"):
    """Why a flagged silence is not ended as things stand: `rule` of `policy.health.ending`, in words `why`.

    Journalled when another rule applies. `until_s`: the silence at which it would be ended after all; None: at none.
    """

    attempt: int
    rule: str
    why: str
    until_s: float | None = None


class HangCountdown(JournalEvent, frozen=True, kw_only=True, tag="hang_countdown"):
    """By all rules the stall is a hang: the attempt is ended at wall time `until`, `left_s` from now, unless a person decides to keep waiting.

    `text`: what the ranks do. `rule`: which rule lets it be ended.
    """

    attempt: int
    until: float
    left_s: float
    text: str
    rule: str


class HangWithdrawn(JournalEvent, frozen=True, kw_only=True, tag="hang_withdrawn"):
    """A countdown was cancelled: a rule now forbids ending the attempt, see `OnlyFlagged`."""

    attempt: int
    rule: str
    why: str


class HangKept(JournalEvent, frozen=True, kw_only=True, tag="hang_kept"):
    """A person decided to keep waiting: this stall is not ended, however long it lasts."""

    attempt: int
    by: str


class HangFound(JournalEvent, frozen=True, kw_only=True, tag="hang_found"):
    """A stall that is a hang: the attempt is ended for it. Journalled just before the intent to stop.

    `ranks`: the odd ones out, empty where it is not known. `rule`: which rule of `policy.health.ending` lets it be ended. `line`: of `artifact`, 1-based, where the user's own frame of the first
    of them stands, or its stack begins. The rest as in `StacksTaken`.
    """

    attempt: int
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


class ClockSet(JournalEvent, frozen=True, kw_only=True, tag="clock_set"):
    """Somebody set the machine's clock; the times of this keeper's events continue as if it had not been set.

    `ahead_s`: by how much the machine's clock is ahead of the events' times from now on, negative if it is behind.
    """

    ahead_s: float


# -- between a failure and the next good step, and the probes before a first launch


class MemoryMeasured(JournalEvent, frozen=True, kw_only=True, tag="memory_measured"):
    """What an attempt showed about its micro-batch: whether it fitted, and the peak memory of a rank."""

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

    `batch`: what the attempts until then ran with, by this answer. `trial`: no person answered; it is tried, for so many-th an attempt.
    """

    question: BatchQuestion
    value: str
    by: str = ""
    batch: BatchSpec | None = None
    day: str = ""
    trial: int | None = None


class WaitingFor(JournalEvent, frozen=True, kw_only=True, tag="waiting_for"):
    """The next launch waits for a precondition; `text`: for which, and what prevents it."""

    attempt: int
    precondition: Precondition = msgspec.field(name="proof")
    text: str


class LaunchCleared(JournalEvent, frozen=True, kw_only=True, tag="launch_cleared"):
    """All preconditions of the next launch were met, or the wait timed out; `waited_s` in seconds."""

    attempt: int
    waited_s: float
    text: str = ""


class Recovered(JournalEvent, frozen=True, kw_only=True, tag="recovered"):
    """The time from a failure to the next completed step, in seconds; a part is None where it is not known.

    `attempt` made the step; `after` failed. The parts: `end_s` failure to the last process gone, `detect_s` to the
    verdict, `wait_s` back-off, `drain_s` wait for preconditions, `spawn_s` plan to torchrun running,
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
    """Whether a resumed attempt continues the same training, by what both logged (`policy.same_training`). The newest one of an attempt holds.

    `difference`: how it differs. `text`: with the numbers, which are in `numbers` too. `steps_twice` logged steps were compared one by
    one; `steps_new` were logged beyond the last one of before. `asked`: the arguments by which a person asked for this difference.
    """

    attempt: int
    result: Sameness
    difference: Difference | None = None
    text: str = ""
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    steps_twice: int = 0
    steps_new: int = 0
    asked: str = ""


class ProbeStarted(JournalEvent, frozen=True, kw_only=True, tag="probe_started"):
    """A short launch to see whether `micro_batch` fits. Probes count from 1; their files lie in probes/<n>."""

    probe: int
    micro_batch: int
    argv: tuple[str, ...]


class ProbeEnded(JournalEvent, frozen=True, kw_only=True, tag="probe_ended"):
    """A probe is over. `fitted` None: it ended for another reason, in `why`; nothing is learnt about memory then."""

    probe: int
    micro_batch: int
    fitted: bool | None
    why: str
    took_s: float
    steps: int = 0


class BatchFitted(JournalEvent, frozen=True, kw_only=True, tag="batch_fitted"):
    """The result of the probes. `batch` is that of the first launch; None: as the job gave it."""

    probes: int
    batch: BatchSpec | None
    text: str


Event: TypeAlias = (
    RunStarted
    | KeeperStarted
    | KeeperLeft
    | ClockSet
    | PreflightFound
    | GpuFound
    | LaunchIntended
    | AttemptStarted
    | RankStarted
    | PhaseChanged
    | TrainerReady
    | BatchMeasured
    | PlanConfirmed
    | PlanDiffers
    | Progress
    | CheckpointCommitted
    | CheckpointKept
    | ResumeMissed
    | EvidenceSeen
    | RankExited
    | RankFailing
    | StopIntended
    | StopStepTaken
    | ProcessesLeft
    | ProcessesGone
    | AttemptEnded
    | LogsDated
    | LogQuiet
    | Diagnosed
    | Decided
    | BackoffStarted
    | Held
    | RequestDone
    | RequestRefused
    | Advisory
    | SlowRankFound
    | LossNotFinite
    | LossFinite
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
    | NodeSeen
    | NoteAdded
    | RunEnded
)


def is_share_of_epochs(share: float, epoch: float, epochs: float) -> bool:
    """Whether a share of steps may be that of the training, by its epochs, which count from 0 or 1: a counter of one epoch stands elsewhere."""
    return abs(share - epoch / epochs) <= 1.5 / epochs
