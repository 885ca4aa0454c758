"""Inputs to a verdict: logs, exit codes, error files and the machine's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.run.records import UsedBatch
from supervisor.text.prefixes import NOWHERE, Origin

if TYPE_CHECKING:
    from supervisor.run.events import RanksAt


class LogSource(NamedTuple):
    """A log. `chunks` is read once, in order; it may be compressed or UTF-16. `path` is shown in the verdict."""

    path: str
    chunks: Iterable[bytes]
    origin: Origin = NOWHERE


class MachineRecords(NamedTuple):
    """The machine's records from the time of the failure. None means that they were not checked or could not be read."""

    cgroup_oom_kills: int | None = None
    slurm_state: str | None = None
    shm_used_share: float | None = None
    disk_free_bytes: int | None = None
    disk_path: str = ""
    gpu_xids: tuple[tuple[int, int], ...] = ()


class RunValues(NamedTuple):
    """The run's own values, for quoting in advice.

    `batch` determines which smaller micro-batches preserve the global batch; `trials` returns those known to fit or
    fail, and is called only to suggest a batch. `user_of` returns the owner of a pid mentioned in a message, and is
    None if pids here differ from those in the message. `behind_entry` lists `stoker run` flags placed after `entry`, the
    script, which received them instead. `keeps_global` is true if nothing rules out a smaller micro-batch at the
    same global batch. `batches` returns each rank's batch in use at the end, or when its loss was first logged as NaN
    (True). `divided_batch` is the batch flag and its value, if it covers more than one rank's batch.
    """

    micro_batch: int | None = None
    batch_knob: str = "device_batch_size"
    port: int | None = None
    free_port: int | None = None
    workers_knob: str = "num_workers"
    workers: int | None = None
    own_pids: frozenset[int] = frozenset()
    allocator_set: bool = False
    batch: BatchSpec | None = None
    memory_base_bytes: int = 0
    trials: Callable[[], Sequence[MemoryTrial]] = tuple
    batches: Callable[[bool], Mapping[int, tuple[UsedBatch, ...]]] = lambda _is_nan: MappingProxyType({})
    user_of: Callable[[int], str | None] | None = None
    entry: str = ""
    behind_entry: tuple[str, ...] = ()
    keeps_global: bool = True
    divided_batch: str = ""


class SeenHang(NamedTuple):
    """Stacks from a live attempt that had stopped making progress.

    `ranks` are the ranks that kept the others waiting, empty if unknown. `path` and `line` say where their stack is
    stored; line 0 means nowhere. `groups` is all ranks grouped by activity. If `ended_for_it` is true, stoker stopped
    the attempt as a hang; otherwise it exited on its own, for example when waiting ranks timed out, or the user
    stopped it. `silent_s` is the time from the last step until the user stopped it.
    """

    ranks: tuple[int, ...]
    text: str
    collective: str | None
    path: str
    line: int
    groups: tuple[RanksAt, ...] = ()
    ended_for_it: bool = True
    silent_s: float | None = None


class SeenRecorder(NamedTuple):
    """What a job's flight-recorder dumps show about a hanging collective.

    `ranks` contains the ranks at fault, and is empty if every rank reached the collective. `text` describes the
    collective and its ranks. `path` is the dump from the first rank at fault or, failing that, any waiting rank.
    If `at_start` is true, the collective is the first in its group.
    """

    ranks: tuple[int, ...]
    text: str
    path: str
    at_start: bool = False


class JobEvidence(NamedTuple):
    """All evidence about an attempt. Only `logs` is required; anything else may be empty.

    Attributes:
        logs: the logs, in any order.
        exit_codes: exit codes keyed by global rank; negative for a signal.
        launcher_exit: the launcher's own exit code.
        launcher_signal: the signal that killed the launcher itself, before stoker stopped it.
        machine: kernel, cgroup, scheduler and disk records.
        stop_reason: why stoker stopped it, or None if it did not. If set, stoker's own signals do not count as a failure.
        ended_for: the failure that made stoker stop the remaining processes ("hang", "rank_died"), or None if it did not.
            If set, signals reported in the logs are stoker's.
        not_resumed: if stoker stopped it for not resuming at its checkpoint, where it started instead, in words.
        plan_differs: if stoker stopped it because its first steps differed from the plan, how they differed, in words.
        last_step: the last step known to have completed, from any source.
        total_steps: the planned number of steps.
        is_total_declared: whether the user declared that total; None if the log or trainer reported a different one.
        epochs: the current epoch and the planned number of epochs.
        is_code_own: whether the exit code is the program's own, with no shell or remote launcher in between.
        ended_t: when it finished, in wall-clock seconds, if recorded in a journal.
        earlier_step: if this attempt made no step, the earlier attempt of the run that got furthest, and its step.
        final_checkpoint: whether a checkpoint of the last step was committed.
        world_size: the number of ranks in the job.
        ranks_per_node: processes per node, for converting local ranks to global ones.
        run_values: values for advice.
        hang: stacks from before the attempt was stopped as a hang, or exited on its own without progress.
        recorder: PyTorch's flight-recorder data about the hanging collective.
        prints_metrics: whether the logs end in rows of metrics, if nothing else shows training.
        raised: the class of the exception that ended each measured process's script, keyed by global rank.
    """

    logs: tuple[LogSource, ...]
    exit_codes: Mapping[int, int] = MappingProxyType({})
    launcher_exit: int | None = None
    launcher_signal: int | None = None
    machine: MachineRecords = MachineRecords()
    stop_reason: str | None = None
    ended_for: str | None = None
    not_resumed: str = ""
    plan_differs: str = ""
    last_step: int | None = None
    total_steps: int | None = None
    is_total_declared: bool | None = None
    epochs: tuple[int, int] | None = None
    is_code_own: bool = False
    ended_t: float | None = None
    earlier_step: tuple[int, int] | None = None
    final_checkpoint: bool = False
    world_size: int | None = None
    ranks_per_node: int | None = None
    run_values: RunValues = RunValues()
    hang: SeenHang | None = None
    recorder: SeenRecorder | None = None
    prints_metrics: bool = False
    raised: Mapping[int, str] = MappingProxyType({})
