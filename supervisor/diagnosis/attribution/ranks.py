"""Which rank a line is about, from all that a log shows of ranks, processes, devices and nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache

from supervisor.diagnosis.attribution.exits import Launch
from supervisor.diagnosis.scan.hit import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.diagnosis.scan.tracebacks import frames_above
from supervisor.run.failures import FailureClass
from supervisor.text.numbers import whole
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix

# Ascend's own record of who failed, in the lines of an exception's message.
_ASCEND = r"\(PID:\d+, Device:\d+, RankID:(\d+)\)"


@cache
def _inline() -> tuple[Lazy, ...]:
    return tuple(
        Lazy(text)
        for text in (
            r"\[Rank (\d+)\]",
            r"\[PG [^\]]*?Rank (\d+)\]",
            r"\(RANK (\d+)\)",
            r'"(?:global_)?rank": ?(\d+)',
            r"\b[Rr]ank=(\d+)\b",
            r"\[rank[ :]{0,2}(\d+)\]",
            r"\bnan on rank (\d+)|NaN on rank (\d+)",
            r"\bon (?:global )?rank (\d+)\b",
            r"\bfor rank (\d+):",
            r"^[Rr]ank (\d+) ?[|:]",
            r"^\[(\d+)\]: ",
            r"\bRank (\d+) is running collective",
            r"\b[Rr]ank[ :](\d+)[,:)\]]",
            _ASCEND,
            # torch_xla/distributed/xla_multiprocessing.py: a TPU core's ordinal is its rank
            r"\bException in device=TPU:(\d+):",
        )
    )


def only_absent(world: int, present: Collection[int]) -> int | None:
    """The one rank of a world that is not among those present; None if none or several are absent."""
    # A world size out of a log may be any number: ranks are counted only where no more than one can be absent.
    if world > len(present) + 1:
        return None
    absent = [rank for rank in range(world) if rank not in present]
    return absent[0] if len(absent) == 1 else None


def inline_rank(text: str) -> int | None:
    """The rank that a line's own words name as its source."""
    if "ank" not in text and "RANK" not in text and "device=TPU" not in text and not text.startswith("["):
        return None
    for pattern in _inline():
        if match := pattern.search(text):
            return whole(next(group for group in match.groups() if group))
    return None


def device_of(text: str) -> int | None:
    """The visible CUDA device that a message names: a local rank as a rule, never a global one."""
    if not any(word in text for word in ("GPU", "NPU", "cuda", "NCCL WARN")):
        return None
    match = (
        re.search(r"\bGPU (\d+)(?: has a total|;|,)|\(GPU (\d+);|\bNPU (\d+)\b", text)
        or re.search(r"^(?:[\w.-]+:\d+:\d+ )?\[(\d+)\] (?:\S+ )?NCCL WARN", text)
        or re.search(r"device='?cuda:(\d+)'?", text)
        or re.search(r"\bGPU[- ](\d+)\b", text)
    )
    if match is None:
        return None
    return whole(next(group for group in match.groups() if group))


def pid_of(text: str) -> int | None:
    """The process that a kernel, Ray or NCCL line names."""
    if not any(word in text for word in ("pid", "PID", "process ", "segfault", "NCCL", "Signal", "***")):
        return None
    match = (
        re.search(r"[Kk]illed process (\d+)|Kill process (\d+)", text)
        or re.search(r"\bpid[= ']+(\d+)", text)
        or re.search(r"\(pid:? (\d+)\)", text)
        or re.search(r"^[\w.-]+:(\d+):\d+ \[\d+\]", text)
        or re.search(r"received by PID (\d+)", text)
        or re.search(r"^\[[\w.-]+:(\d+)\] (?:\*\*\*|Signal)", text)
        or re.search(r"^\S*: \S*\[(\d+)\]: segfault", text)
    )
    if match is None:
        return None
    return whole(next(group for group in match.groups() if group))


def _task_out_of_memory(hit: Hit) -> int | None:
    """The one task that srun names as out of memory, in the line or right below slurmstepd's."""
    for line in (hit.text, *hit.lines_after(6)):
        if match := re.search(r"\btasks? (\d+)([\d,-]*): Out Of Memory", line):
            return None if match.group(2) else whole(match.group(1))
    return None


class Ranks:
    """Answers questions about ranks for one job."""

    def __init__(self, scans: Sequence[SourceScan], launch: Launch) -> None:
        self._launch = launch
        self._base_by_node: dict[str, int] = {}
        self._task_is_rank = True
        self._seen: set[int] = set()
        # What ranks printed of their own progress because another one's watchdog had fired.
        self.dump_answers = [hit for scan in scans for hit in scan.hits if hit.has(Trait.DUMP_ANSWER)]
        ranks_by_device: dict[int, set[int]] = {}
        for scan in scans:
            for line in scan.edges():
                if "rank" in line or "Rank" in line or "RANK" in line:
                    self._read(line, scan.hosts, ranks_by_device)
        self._rank_by_device = {
            device: min(ranks) for device, ranks in ranks_by_device.items() if len(ranks) == 1
        }
        for item in launch.exits:
            if item.rank is not None and item.local_rank is not None and item.node is not None:
                self._base_by_node.setdefault(item.node, item.rank - item.local_rank)
        per_node = launch.per_node
        if per_node:
            for node, base in list(self._base_by_node.items()):
                self._base_by_node[node] = base // per_node * per_node
        self.multi_node = len(self._base_by_node) > 1 or (
            launch.world_size is not None and per_node is not None and launch.world_size > per_node
        )

    def _read(self, line: str, hosts: Collection[str], ranks_by_device: dict[int, set[int]]) -> None:
        """Note what one line's prefix shows: its rank, and with that the rank's node, task, process and device."""
        origin, rest = split_prefix(line, hosts)
        rank = origin.rank
        if rank is None:
            return
        self._seen.add(rank)
        if origin.node is not None:
            self._note_node(origin.node, rank)
        if origin.task is not None and origin.task != rank:
            self._task_is_rank = False
        if origin.pid is not None:
            self._launch.rank_by_pid.setdefault(origin.pid, rank)
        device = device_of(rest)
        if device is not None:
            ranks_by_device.setdefault(device, set()).add(rank)

    @property
    def seen(self) -> frozenset[int]:
        """All ranks that printed anything."""
        return frozenset(self._seen)

    def only_silent(self) -> int | None:
        """The one rank that printed nothing, where all others did."""
        world = self._launch.world_size or (max(self._seen, default=-1) + 1)
        return only_absent(world, self._seen) if world > 2 else None

    def _note_node(self, node: str, rank: int) -> None:
        per_node = self._launch.per_node or 8
        base = rank // per_node * per_node
        self._base_by_node[node] = min(base, self._base_by_node.get(node, base))

    def from_local(self, local: int, node: str | None) -> int | None:
        """A local rank as a global one."""
        if node is not None and node in self._base_by_node:
            return self._base_by_node[node] + local
        if node is not None and self._launch.per_node and (match := re.fullmatch(r"node[_-]?(\d+)", node)):
            return whole(match.group(1)) * self._launch.per_node + local
        for item in self._launch.exits:
            if (
                item.local_rank == local
                and item.rank is not None
                and (node is None or item.node in {None, node})
            ):
                return item.rank
        if self.multi_node and node is not None:
            return None
        if len(self._base_by_node) == 1 and not self.multi_node and node is None:
            return next(iter(self._base_by_node.values())) + local
        return local

    def from_task(self, task: int) -> int | None:
        """A launcher's task number as a rank, where one process runs a task."""
        return task if self._task_is_rank else None

    def of(self, hit: Hit, failure: FailureClass) -> int | None:
        """The rank a hit belongs to, or None where it is not known: the most reliable source first."""
        if hit.origin.rank is not None:
            # A distributed checkpoint's report is printed by all and names whose traceback it quotes.
            quoted = frames_above(hit).quoted_rank
            return quoted if quoted is not None else hit.origin.rank
        frames = frames_above(hit)
        named = (inline_rank(hit.text), frames.spawn_rank, frames.announced)
        if (rank := next((rank for rank in named if rank is not None), None)) is not None:
            return rank
        if hit.origin.local_rank is not None:
            return self.from_local(hit.origin.local_rank, hit.origin.node)
        for find in (self._by_process, self._by_task, self._by_lines_below, self._by_device):
            if (rank := find(hit, failure)) is not None:
                return rank
        return None

    def _by_process(self, hit: Hit, _failure: FailureClass) -> int | None:
        """By the process that the line names, or that Ray names below it."""
        by_ray = "raylet" in hit.text or "killed due to" in hit.text
        below = [pid_of(line) for line in hit.lines_after(14)] if by_ray else []
        for pid in (pid_of(hit.text), hit.origin.pid, *below):
            if pid is None:
                continue
            if pid in self._launch.rank_by_pid:
                return self._launch.rank_by_pid[pid]
            item = next((item for item in self._launch.exits if item.pid == pid), None)
            if item is not None:
                return (
                    item.rank if item.rank is not None else self.from_local(item.local_rank or 0, item.node)
                )
        return None

    def _by_task(self, hit: Hit, failure: FailureClass) -> int | None:
        """By the launcher's task, in the prefix or in the words of an out-of-memory report."""
        if hit.origin.task is not None and self._task_is_rank and failure is not FailureClass.TERMINATED:
            return hit.origin.task
        task = _task_out_of_memory(hit) if hit.has(Trait.NAMES_TASK) else None
        return self.from_task(task) if task is not None else None

    def _by_lines_below(self, hit: Hit, _failure: FailureClass) -> int | None:
        ranks = (self._near(line) for line in hit.lines_after(6))
        return next((rank for rank in ranks if rank is not None), None)

    def _by_device(self, hit: Hit, failure: FailureClass) -> int | None:
        """By the visible device that the message names."""
        device = device_of(hit.text)
        if device is None and failure is FailureClass.NAN_LOSS:
            below = (device_of(line) for line in hit.lines_after(2)[:2])
            device = next((found for found in below if found is not None), None)
        if device is None:
            return None
        if hit.origin.node is None and device in self._rank_by_device:
            return self._rank_by_device[device]
        return self.from_local(device, hit.origin.node)

    def _near(self, line: str) -> int | None:
        """A continuation line right below may carry the words ``for rank 2:``."""
        match = re.search(rf"did not receive grad for rank (\d+)|terminated.*\[Rank (\d+)\]|{_ASCEND}", line)
        return whole(next(group for group in match.groups() if group)) if match else None

    def blamed(self) -> int | None:
        """The rank that the launcher saw fail, where it names just one or reports which it saw first."""
        launch = self._launch
        own = [
            item for item in launch.exits
            if item.code not in {0, -15} and not (item.pid in launch.sigtermed and item.code < 0)
        ]  # fmt: skip
        if launch.root_rank is not None:
            return launch.root_rank
        ranked = [item.rank for item in own if item.rank is not None]
        if ranked:
            return ranked[0]
        tasks = {item.task for item in own if item.task is not None}
        if len(tasks) == 1 and all(item.task is not None for item in own):
            return tasks.pop()
        locals_ = [item for item in own if item.local_rank is not None]
        if locals_:
            return self.from_local(locals_[0].local_rank or 0, locals_[0].node)
        return None
