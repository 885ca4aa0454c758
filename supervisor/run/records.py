"""The records that events carry: failures, verdicts, decisions, findings.

Plain frozen dataclasses and string enums, without msgspec. `diagnosis`, `policy` and `preflight` create these records,
`run.events` carries them, and views show them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from supervisor.job.batch import BatchChange


class FailureClass(StrEnum):
    """The kind of failure that ended a run. Every package shares this one closed set."""

    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    SHM_EXHAUSTED = "shm_exhausted"
    FD_LIMIT = "fd_limit"
    DISK_FULL = "disk_full"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    LIBUV = "libuv"
    PORT_IN_USE = "port_in_use"
    RENDEZVOUS = "rendezvous"
    DATALOADER_WORKER = "dataloader_worker"
    WORKER_CRASH = "worker_crash"
    HANG = "hang"
    DDP_MISMATCH = "ddp_mismatch"
    CUDA_ERROR = "cuda_error"
    GPU_FAULT = "gpu_fault"
    CUDA_UNAVAILABLE = "cuda_unavailable"
    NAN_LOSS = "nan_loss"
    CHECKPOINT_LOAD = "checkpoint_load"
    MISSING_FILE = "missing_file"
    PERMISSION_DENIED = "permission_denied"
    AUTH_OR_HUB = "auth_or_hub"
    IMPORT_ERROR = "import_error"
    USAGE_ERROR = "usage_error"
    COMPILE_ERROR = "compile_error"
    CODE_ERROR = "code_error"
    TERMINATED = "terminated"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


OUT_OF_MEMORY = frozenset((FailureClass.CUDA_OOM, FailureClass.HOST_OOM))
# Errors of the program whose own message is the explanation.
PLAIN_ERRORS = frozenset(
    (
        FailureClass.CODE_ERROR,
        FailureClass.IMPORT_ERROR,
        FailureClass.USAGE_ERROR,
        FailureClass.MISSING_FILE,
        FailureClass.PERMISSION_DENIED,
    )
)
# A lower confidence rests only on silence, an exit code or peers' complaints (see `diagnosis.root_rules`).
SURE_ENOUGH = 0.8


class Reason(StrEnum):
    """Refinements of a few classes, as a closed set. The other classes have none."""

    # host_oom
    ALLOCATOR = "allocator"
    KERNEL_KILL = "kernel_kill"
    CGROUP_KILL = "cgroup_kill"
    SLURM = "slurm"
    # code_error
    INSTRUMENT = "instrument"  # raised in stoker's own measurements
    # terminated
    USER = "user"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    OUTSIDE = "outside"
    # dataloader_worker
    RAISED = "raised"
    KILLED = "killed"
    SEGFAULT = "segfault"
    # worker_crash
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    SILENT = "silent"
    AT_EXIT = "at_exit"
    # unknown
    NO_STEP = "no_step"
    ENDED_EARLY = "ended_early"


class Action(StrEnum):
    """What a verdict suggests. Only `policy` decides what is actually done."""

    NONE = "none"
    REDUCE_BATCH = "reduce_batch"
    SET_ALLOCATOR = "set_allocator"
    NEW_PORT = "new_port"
    RESTART = "restart"
    RESTART_WITH_ENV = "restart_with_env"
    FEWER_WORKERS = "fewer_workers"
    RAISE_LIMIT = "raise_limit"
    RESUME_EARLIER = "resume_earlier"
    WAIT_DISK = "wait_disk"
    EXCLUDE_GPU = "exclude_gpu"
    REQUEUE = "requeue"
    HOLD = "hold"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Cause:
    """The log line that caused the failure. `line` is 1-based and counts newlines after decoding."""

    path: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Consequence:
    """A failure that followed from the cause. It is shown separately and never acted on.

    `what` is a better description than the class, if there is one; see `words`.
    """

    failure: FailureClass
    rank: int | None
    path: str
    line: int | None
    text: str = ""
    what: str = ""

    @property
    def words(self) -> str:
        """The text that is shown: `what` if it is set, otherwise the class."""
        return self.what or self.failure.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class UsedBatch:
    """A batch that a rank was working on when it failed, as measured in its process.

    `at` is the line that made its DataLoader (file:line), `epoch` and `index` are the batch's place in that loader, from 0,
    and `step` the optimizer steps that the process had made when the batch was drawn. `size` is how many samples the sampler chose, and `indices` the
    first of their indices in the loader's dataset, or None if the dataset has none. `times_usual` is its number of elements
    over the median of the latest batches.
    """

    rank: int
    at: str
    epoch: int
    index: int
    step: int
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    size: int | None = None
    indices: tuple[int, ...] | None = None
    times_usual: float | None = None


_WHERE = re.compile(r" on (?:ranks? \d+(?:, \d+)*(?: …)?|local rank \d+(?: of node \S+)?)(?=:|$)")
# A healthy verdict below this rests on steps alone (diagnosis/root_rules.py: `good_end` has 0.97, `still_training` 0.94).
SURELY_OVER = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an attempt ended. This record is the wire schema of ``stoker diagnose --json``.

    `rank` is the rank that failed first, or None if it is unknown or several ranks failed in the same way (`ranks`
    then lists them). `confidence` is in [0, 1] and calibrated on the corpus. `signature` is the id of the user's own
    signature that decided the verdict, or "". `batches` are those in use on the failed ranks; several of one rank if it
    is not known which of them it was.
    """

    failure: FailureClass
    reason: Reason | None
    confidence: float
    rank: int | None
    ranks: tuple[int, ...]
    node: str | None
    title: str
    cause: Cause | None
    consequences: tuple[Consequence, ...]
    advice: tuple[str, ...]
    action: Action
    fingerprint: str
    signature: str = ""
    local_rank: int | None = None
    batches: tuple[UsedBatch, ...] = ()

    @property
    def is_plain_error(self) -> bool:
        """Whether to hide the confidence because the program's own message explains the failure or the user stopped the run."""
        stopped = self.failure is FailureClass.TERMINATED and self.reason is Reason.USER
        return (stopped or self.failure in PLAIN_ERRORS) and self.confidence >= SURE_ENOUGH

    @property
    def title_says_cause(self) -> bool:
        """Whether the title repeats the cause line."""
        return self.cause is not None and self.plain_title in self.cause.text

    @property
    def plain_title(self) -> str:
        """The title without its ranks."""
        return _WHERE.sub("", self.title, count=1)

    @property
    def shows_end(self) -> bool:
        """Whether the verdict shows that the job ended, with a failure or a logged success. Steps alone do not show that."""
        if self.failure is FailureClass.HEALTHY:
            return self.confidence >= SURELY_OVER
        return self.failure is not FailureClass.UNKNOWN


class DecisionKind(StrEnum):
    """What the policy can decide after an attempt."""

    SUCCEED = "succeed"
    RESTART = "restart"
    HOLD = "hold"
    FAIL = "fail"
    GIVE_UP = "give_up"
    STOP = "stop"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class SpecChange:
    """What the next attempt does differently. If every field is empty, the job is relaunched unchanged.

    `set_args` holds (flag, value) pairs for the script; an empty value means a bare flag. `argv` replaces everything
    after the script. `raise_open_files` raises the soft limit on open files to the hard limit.
    `nproc_per_node` is the number of ranks on this node when a GPU is excluded.
    """

    batch: BatchChange | None = None
    env: tuple[tuple[str, str], ...] = ()
    set_args: tuple[tuple[str, str], ...] = ()
    new_port: bool = False
    from_scratch: bool = False
    argv: tuple[str, ...] | None = None
    raise_open_files: bool = False
    nproc_per_node: int | None = None


class Precondition(StrEnum):
    """A condition that must be met before the next launch."""

    GPU_MEMORY = "gpu_memory"  # the dead ranks' GPU memory is free again
    PORT = "port"  # the chosen port is free
    DISK = "disk"  # the run's disk has space


@dataclass(frozen=True, slots=True)
class Decision:
    """The policy's decision. `change` is set for RESTART, and for HOLD if a change could be proposed.

    The launch waits at most `wait_s` seconds for `show_first` to be met. `asks` means that an answer could change the
    decision, for example by letting the policy plan a smaller batch.
    """

    kind: DecisionKind
    reason: str
    delay_s: float = 0.0
    change: SpecChange | None = None
    exit_code: int | None = None
    show_first: tuple[Precondition, ...] = ()
    wait_s: float = 0.0
    asks: bool = False


class Sameness(StrEnum):
    """How a resumed attempt compares with the training before it (`policy.same_training`)."""

    SAME = "same"
    SAME_WITHIN_NOISE = "same_within_noise"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # the log does not tell enough


class Difference(StrEnum):
    """The measured value that differs between a resumed attempt and the earlier training."""

    STEP = "step"
    LEARNING_RATE = "learning_rate"
    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    # Only in older journals, where statistics on losses and counters told these apart.
    GLOBAL_BATCH = "global_batch"
    FROM_STEP_0 = "from_step_0"
    STEP_COUNTER = "step_counter"
    LR_RESTARTED = "learning_rate_restarted"
    LR_COUNTED_TWICE = "learning_rate_counted_twice"
    ACCUMULATION_WEIGHTING = "accumulation_weighting"
    WEIGHTS = "weights"
    DATA_ORDER = "data_order"
    OPTIMIZER_STATE = "optimizer_state"


class FindingLevel(StrEnum):
    """Severity of a pre-flight finding. REFUSE aborts the start with exit code 3."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """One pre-flight result: what was checked, what was found, and what to do about it."""

    level: FindingLevel
    check: str
    what: str
    fix: str = ""
