"""What a verdict is made from: logs, exit codes, error files, and what the machine recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.text.prefixes import NOWHERE, Origin

_ERROR_FILE_BYTES = 1 << 20
# A JSON string that may be cut off: `"message": "text…`.
_HALF_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\["\\/bfnrt]|\\u[\da-fA-F]{4})*)')


class LogSource(NamedTuple):
    """One log. `chunks` is read in order, once; packed or UTF-16 bytes are fine. `path` is what a verdict shows."""

    path: str
    chunks: Iterable[bytes]
    origin: Origin = NOWHERE


class ErrorFile(NamedTuple):
    """An error.json as bytes, perhaps only half of it, with its place and whose it is."""

    path: str
    content: bytes
    origin: Origin = NOWHERE


class RankError(NamedTuple):
    """What a rank wrote about its own failure: raw text, and the time in whole seconds since the epoch (0: unknown)."""

    message: str
    timestamp_s: int = 0


def read_error_file(data: bytes) -> RankError | None:
    """Read torchrun's error.json, complete or cut off by a kill during the write. None: it holds no message.

    ``torch.distributed.elastic.multiprocessing.errors`` writes it if ``@record`` wraps the script's main:
    ``{"message": {"message": str, "extraInfo": {"py_callstack": str, "timestamp": "<whole seconds>"}}}``.
    """
    text = data[:_ERROR_FILE_BYTES].decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        half = _HALF_MESSAGE.search(text)
        document = {"message": json.loads(f'"{half.group(1)}"', strict=False) if half else None}
    body = document.get("message") if isinstance(document, dict) else None
    body = body if isinstance(body, dict) else {"message": body}
    message, extra = body.get("message"), body.get("extraInfo")
    if not isinstance(message, str) or not message:
        return None
    second = str(extra.get("timestamp")) if isinstance(extra, dict) else ""
    is_whole = second.isascii() and second.isdigit() and len(second) <= 12
    return RankError(message, int(second) if is_whole else 0)


class MachineRecords(NamedTuple):
    """What the machine knows of the time of death. None: not looked at, or not readable."""

    cgroup_oom_kills: int | None = None
    kernel_log: str = ""
    slurm_state: str | None = None
    shm_used_share: float | None = None
    disk_free_bytes: int | None = None
    disk_path: str = ""
    gpu_xids: tuple[tuple[int, int], ...] = ()


class RunValues(NamedTuple):
    """The run's own values, quoted in advice.

    `batch` shows which smaller micro-batches keep the global one, `trials` which of them are known to fit or to fail (only called where
    a batch is suggested). `user_of` names the owner of a pid that a
    message names; None where pids here are not those of the message. `behind_entry`: flags of `stoker run` that stood
    behind `entry`, the script, and so went to it. `keeps_global`: nothing is known that keeps the script from a smaller
    micro-batch at the same global batch. `divided_batch`: the batch flag with its value, where it holds more than one rank's.
    """

    micro_batch: int | None = None
    batch_knob: str = "device_batch_size"
    port: int | None = None
    free_port: int | None = None
    workers_knob: str = "num_workers"
    workers: int | None = None
    own_pids: frozenset[int] = frozenset()
    other_gpu_users: tuple[str, ...] = ()
    allocator_set: bool = False
    batch: BatchSpec | None = None
    memory_base_bytes: int = 0
    trials: Callable[[], Sequence[MemoryTrial]] = tuple
    user_of: Callable[[int], str | None] | None = None
    entry: str = ""
    behind_entry: tuple[str, ...] = ()
    keeps_global: bool = True
    divided_batch: str = ""


class SeenGroup(NamedTuple):
    """Ranks that the stacks showed doing the same: see `run.events.RanksAt`."""

    ranks: tuple[int, ...]
    doing: str
    what: str
    line_at: str | None = None
    lines: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        """``in all_reduce at train.py:50``."""
        return self.what if self.line_at is None else f"{self.what} at {self.line_at}"


class SeenHang(NamedTuple):
    """What stacks showed while the attempt lived and made no progress any more.

    `ranks`: those that kept the others waiting, empty where not known. `path` and `line`: where its stack is kept;
    line 0: nowhere. `groups`: all ranks by what they did. `ended_for_it`: the attempt was ended as a hang; otherwise it
    ended by itself, as when those that wait run into their own timeout, or a person stopped it. `silent_s`: how long after the last
    step a person did.
    """

    ranks: tuple[int, ...]
    text: str
    collective: str | None
    path: str
    line: int
    groups: tuple[SeenGroup, ...] = ()
    ended_for_it: bool = True
    silent_s: float | None = None


class SeenRecorder(NamedTuple):
    """What the flight-recorder dumps of a job show of a collective that hangs.

    `ranks`: those at fault, empty where all came to it. `text`: the collective and they, in a line. `path`: the dump of the
    first of them, else of any rank that waits. `at_start`: it is the first collective of its group.
    """

    ranks: tuple[int, ...]
    text: str
    path: str
    at_start: bool = False


class JobEvidence(NamedTuple):
    """All there is on one attempt. Only `logs` is needed; every other part may be empty.

    Attributes:
        logs: the logs, in any order.
        exit_codes: by global rank; negative for a signal.
        launcher_exit: the launcher's own exit code.
        launcher_signal: the signal that ended the launcher itself, before anybody here stopped it.
        error_files: torchrun's error files.
        machine: kernel, cgroup, scheduler, disks.
        stop_reason: why we stopped it ourselves; None if we did not. Our own signals are then no failure.
        ended_for: the failure for which we ended what was left of it ("hang", "rank_died"); None if we did not. The
            signals that the logs then report are ours.
        not_resumed: where it began in place of the checkpoint that it was to go on from, in words, if we ended it for that.
        plan_differs: what its first steps had in place of the plan, in words, if we ended it for that.
        last_step: the last completed step known, by any source.
        total_steps: the steps it was to do.
        is_total_declared: whether a person declared that total; None: the log or the trainer reported another one than was asked for.
        epochs: the epoch it was in, and how many there were to be.
        is_code_own: whether the exit code is that of the program itself: neither a shell nor a remote launcher stands between.
        ended_t: when it ended, wall seconds, where a journal tells.
        earlier_step: of an attempt that made no step: which earlier attempt of the run had come furthest, and to which step.
        final_checkpoint: whether a checkpoint of the last step was committed.
        world_size: ranks in the job.
        ranks_per_node: processes a node, to turn local ranks into global ones.
        run_values: values for advice.
        hang: what the stacks showed before the attempt was ended as a hang, or ended by itself without progress.
        recorder: what PyTorch's flight recorder wrote of the collective that hangs.
        metric_rows: lines at the end of the logs that the metrics grammar reads, where nothing else told that they train.
        raised: by global rank, the class of the exception that ended its script, where the process was measured.
    """

    logs: tuple[LogSource, ...]
    exit_codes: Mapping[int, int] = MappingProxyType({})
    launcher_exit: int | None = None
    launcher_signal: int | None = None
    error_files: tuple[ErrorFile, ...] = ()
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
