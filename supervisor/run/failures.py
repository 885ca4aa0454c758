"""The closed sets of words for failures: class, reason, suggested action.

Kept apart from the records that carry them, because importing `dataclasses` (which imports `inspect`) and creating the records
costs as much as Python's own start, and ``stoker diagnose`` needs only the words.
"""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """What kind of failure ended a run. One closed set, shared by every package."""

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
# Errors of the program whose own message says what happened.
PLAIN_ERRORS = frozenset(
    (
        FailureClass.CODE_ERROR,
        FailureClass.IMPORT_ERROR,
        FailureClass.USAGE_ERROR,
        FailureClass.MISSING_FILE,
        FailureClass.PERMISSION_DENIED,
    )
)
# A lower confidence rests on silence, an exit code or peers' complaints alone (see `diagnosis.root_rules`).
SURE_ENOUGH = 0.8


class Reason(StrEnum):
    """Closed refinements of a few classes; every other class has none."""

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
