"""The inputs of a verdict: logs, exit codes, error files, and the machine's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.text.prefixes import NOWHERE, Origin

if TYPE_CHECKING:
    from supervisor.run.events import RanksAt


class LogSource(NamedTuple):
    """One log. `chunks` is read in order, once. Compressed or UTF-16 bytes are fine. `path` is shown in a verdict."""

    path: str
    chunks: Iterable[bytes]
    origin: Origin = NOWHERE


class MachineRecords(NamedTuple):
    """The machine's records from the time of death. None means not checked, or not readable."""

    cgroup_oom_kills: int | None = None
    slurm_state: str | None = None
    shm_used_share: float | None = None
    disk_free_bytes: int | None = None
    disk_path: str = ""
    gpu_xids: tuple[tuple[int, int], ...] = ()


class RunValues(NamedTuple):
    """The run's own values, quoted in advice.

    `batch` shows which smaller micro-batches keep the global one, `trials` which of them are known to fit or
    fail (called only to suggest a batch). `user_of` returns the owner of a pid in a message. It is None if
    pids here differ from the message's. `behind_entry`: flags of `stoker run` that came after `entry`, the
    script, and so went to it. `keeps_global`: nothing known prevents a smaller micro-batch with the same
    global batch. `divided_batch` is the batch flag with its value, if it covers more than one rank's batch.
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
    user_of: Callable[[int], str | None] | None = None
    entry: str = ""
    behind_entry: tuple[str, ...] = ()
    keeps_global: bool = True
    divided_batch: str = ""


class SeenHang(NamedTuple):
    """The stacks of a live attempt that had stopped making progress.

    `ranks` are the ranks that kept the others waiting, empty if unknown. `path` and `line`: where their stack is
    stored; line 0: nowhere. `groups`: all ranks by activity. `ended_for_it` means that the attempt was ended as a hang.
    Otherwise it ended on its own, for example when waiting ranks timed out, or a person stopped it.
    `silent_s` is the time from the last step to a person's stop.
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

    `ranks` holds the ranks at fault and is empty if all reached the collective. `text` describes the collective
    and its ranks. `path` is the dump from the first rank at fault, or else from any waiting rank. `at_start` says
    whether the collective is the first in its group.
    """

    ranks: tuple[int, ...]
    text: str
    path: str
    at_start: bool = False


class JobEvidence(NamedTuple):
    """All evidence about one attempt. Only `logs` is required. Any other part may be empty.

    Attributes:
        logs: the logs, in any order.
        exit_codes: by global rank; negative for a signal.
        launcher_exit: the launcher's own exit code.
        launcher_signal: the signal that ended the launcher itself, before stoker stopped it.
        machine: kernel, cgroup, scheduler, disks.
        stop_reason: why stoker stopped it, or None if it did not. stoker's own signals are then not a failure.
        ended_for: the failure for which stoker ended the rest ("hang", "rank_died"); None if it did not. Signals reported in the
            logs are then stoker's.
        not_resumed: where it started instead of at its checkpoint, in words, if stoker ended it for that.
        plan_differs: how its first steps differed from the plan, in words, if stoker ended it for that.
        last_step: the last known completed step, from any source.
        total_steps: the planned steps.
        is_total_declared: whether a person declared that total; None: the log or the trainer reported a different one.
        epochs: its epoch, and the planned number of epochs.
        is_code_own: whether the exit code is the program's own, with no shell or remote launcher in between.
        ended_t: when it ended, wall seconds, if a journal has it.
        earlier_step: for an attempt without a step: the earlier attempt of the run that got furthest, and its step.
        final_checkpoint: whether a checkpoint of the last step was committed.
        world_size: ranks in the job.
        ranks_per_node: processes per node, to turn local ranks into global ones.
        run_values: values for advice.
        hang: the stacks before the attempt was ended as a hang, or ended on its own without progress.
        recorder: PyTorch's flight-recorder data about the hanging collective.
        metric_rows: number of metric lines at the end of the logs, if nothing else shows training.
        raised: by global rank, the class of the exception that ended its script, if the process was measured.
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
    metric_rows: int = 0
    raised: Mapping[int, str] = MappingProxyType({})
