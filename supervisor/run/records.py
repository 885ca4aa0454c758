"""The records that events carry: failures, verdicts, decisions, findings.

Plain frozen dataclasses and string enums, with no import of msgspec, so that
``stoker diagnose`` can make and print a verdict without paying for it.
`diagnosis`, `policy` and `preflight` make these records; `run.events` carries
them; views show them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from supervisor.job.batch import BatchChange


class FailureClass(StrEnum):
    """What kind of failure ended a run. One closed set, shared by every room."""

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


class Reason(StrEnum):
    """Closed refinements of a few classes; every other class has none."""

    # host_oom
    ALLOCATOR = "allocator"
    KERNEL_KILL = "kernel_kill"
    CGROUP_KILL = "cgroup_kill"
    SLURM = "slurm"
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


class Action(StrEnum):
    """What a verdict suggests; `policy` alone decides what is done."""

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
    """The place that an expert would point at. `line` is 1-based, counted by newlines after decoding."""

    path: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Consequence:
    """A failure that followed from the cause: shown apart, never acted upon."""

    failure: FailureClass
    rank: int | None
    path: str
    line: int | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an attempt ended: the wire schema of ``stoker diagnose --json`` is this record.

    `rank` is the rank that fell first, or None where ranks fail alike (then `ranks` lists them)
    or where nothing tells. `confidence` is in [0, 1] and calibrated on the corpus.
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


class DecisionKind(StrEnum):
    """What policy settles on after an attempt ended."""

    SUCCEED = "succeed"
    RESTART = "restart"
    HOLD = "hold"
    FAIL = "fail"
    GIVE_UP = "give_up"
    STOP = "stop"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class SpecChange:
    """What the next attempt does differently. All fields empty: relaunch as it was.

    `set_args`: (flag, value) pairs for the script; an empty value makes a switch. `argv` replaces all that
    follows the script. `raise_open_files`: the soft limit on open files goes up to the hard one.
    """

    batch: BatchChange | None = None
    env: tuple[tuple[str, str], ...] = ()
    set_args: tuple[tuple[str, str], ...] = ()
    new_port: bool = False
    from_scratch: bool = False
    argv: tuple[str, ...] | None = None
    raise_open_files: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Policy's answer. `change` is set for RESTART, and for HOLD where a plan could be offered."""

    kind: DecisionKind
    reason: str
    delay_s: float = 0.0
    change: SpecChange | None = None
    exit_code: int | None = None


class FindingLevel(StrEnum):
    """How grave a pre-flight finding is: REFUSE ends the start with exit code 3."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """One pre-flight result: what was looked at, what was found, what to do about it."""

    level: FindingLevel
    check: str
    what: str
    fix: str = ""
