"""Finds the rank of a line, from all ranks, processes, devices and nodes in a log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

from supervisor.diagnosis.process_exits import Exit, Launch
from supervisor.diagnosis.scan.frames import frames_above
from supervisor.diagnosis.scan.matched_lines import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import Origin, split_prefix

# Ascend's own record of the failed rank, in the lines of an exception's message.
_ASCEND = r"\(PID:\d+, Device:\d+, RankID:(\d+)\)"

# torchrun's agent's lines about its group: its ranks in the order of their local ranks.
_OF_AGENT = Lazy(r"^\s*global_ranks=\[(\d+)")
_OWN = r"\[(?:PG [^\]]*?)?Rank (\d+)\]"
# By the launcher's SIGTERM, and by the watchdog of a waiting rank.
ENDED_FOR_OTHERS = frozenset((-15, -6))


_INLINE = (
    Lazy(_OWN),
    Lazy(r"\(RANK (\d+)\)"),
    Lazy(r'"(?:global_)?rank": ?(\d+)'),
    Lazy(r"\b[Rr]ank=(\d+)\b"),
    Lazy(r"\[rank[ :]{0,2}(\d+)\]"),
    Lazy(r"\bon (?:global )?rank (\d+)\b"),
    Lazy(r"\bfor rank (\d+):"),
    Lazy(r"^[Rr]ank (\d+) ?[|:]"),
    Lazy(r"^\[(\d+)\]: "),
    Lazy(r"\bRank (\d+) is running collective"),
    Lazy(r"\b[Rr]ank[ :](\d+)[,:)\]]"),
    Lazy(_ASCEND),
    # torch_xla/distributed/xla_multiprocessing.py: a TPU core's ordinal is its rank
    Lazy(r"\bException in device=TPU:(\d+):"),
)
_DEVICES = (
    Lazy(r"\bGPU (\d+)(?: has a total|;|,)|\(GPU (\d+);|\bNPU (\d+)\b"),
    Lazy(r"^(?:[\w.-]+:\d+:\d+ )?\[(\d+)\] (?:\S+ )?NCCL WARN"),
    Lazy(r"device='?cuda:(\d+)'?"),
    Lazy(r"\bGPU[- ](\d+)\b"),
)
_PIDS = (
    Lazy(r"[Kk]illed process (\d+)|Kill process (\d+)"),
    Lazy(r"\bpid[= ']+(\d+)"),
    Lazy(r"\(pid:? (\d+)\)"),
    Lazy(r"^[\w.-]+:(\d+):\d+ \[\d+\]"),
    Lazy(r"received by PID (\d+)"),
    Lazy(r"^\[[\w.-]+:(\d+)\] (?:\*\*\*|Signal)"),
    Lazy(r"^\S*: \S*\[(\d+)\]: segfault"),
)


def _first_number(patterns: Sequence[Lazy], text: str) -> int | None:
    """The number captured by the first matching pattern."""
    match = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return whole(next(group for group in match.groups() if group)) if match is not None else None


def only_absent(world: int, present: Collection[int]) -> int | None:
    """The one rank of a world that is not among those present; None if none or several are absent."""
    # A logged world size may be any number: count ranks only if at most one can be absent.
    if world > len(present) + 1:
        return None
    absent = [rank for rank in range(world) if rank not in present]
    return absent[0] if len(absent) == 1 else None


def inline_rank(text: str) -> int | None:
    """The rank that a line's own words name as its source."""
    if "ank" not in text and "RANK" not in text and "device=TPU" not in text and not text.startswith("["):
        return None
    return _first_number(_INLINE, text)


def own_rank(text: str) -> int | None:
    """The rank that PyTorch's C++ code names as its own: ``[Rank 3] Watchdog caught …``."""
    match = re.search(_OWN, text) if "Rank" in text else None
    return whole(match.group(1)) if match is not None else None


def device_of(text: str) -> int | None:
    """The visible CUDA device in a message: usually a local rank, never a global one."""
    if not any(word in text for word in ("GPU", "NPU", "cuda", "NCCL WARN")):
        return None
    return _first_number(_DEVICES, text)


def pid_of(text: str) -> int | None:
    """The process in a kernel, Ray or NCCL line."""
    if not any(word in text for word in ("pid", "PID", "process ", "segfault", "NCCL", "Signal", "***")):
        return None
    return _first_number(_PIDS, text)


def place_of(origin: Origin) -> str | None:
    """The node of a local rank, by its prefix: its name, or the number of the task whose torchrun started it."""
    if origin.node is not None or origin.task is None:
        return origin.node
    return str(origin.task)


class Ranks:
    """Answers questions about ranks for one job.

    A local rank is mapped to a global one only by the job's own lines: a line with both, a launcher's report,
    or a single node.
    """

    def __init__(self, scans: Sequence[SourceScan], launch: Launch) -> None:
        self._launch = launch
        # By place, the possible global ranks of its local rank 0. The place None: lines that name no node.
        self._bases: defaultdict[str | None, set[int]] = defaultdict(set)
        # By node, the ranks of lines without local ones.
        self._of_node: defaultdict[str | None, set[int]] = defaultdict(set)
        self._task_is_rank = (launch.per_node or 1) == 1
        self._tasks: set[int] = set()
        self._seen: set[int] = set()
        self._nodes: set[str | None] = set()
        # Progress that ranks printed because another one's watchdog had fired.
        self.dump_answers = [hit for scan in scans for hit in scan.hits if hit.has(Trait.DUMP_ANSWER)]
        for scan in scans:
            for line in scan.edges():
                self._read(line, scan)
        self._read_exits(launch)
        self.multi_node = self._spans_nodes(launch)
        # A rank that complains about waiting did not fail before.
        self._waited = {
            rank
            for scan in scans
            for hit in scan.hits
            if hit.signature.failure is FailureClass.NCCL_TIMEOUT
            and (rank := hit.rank if hit.rank is not None else own_rank(hit.text)) is not None
        }

    def _read_exits(self, launch: Launch) -> None:
        """Note the global ranks that a launcher's report gives for local ones, and those that follow from a node's size."""
        for item in launch.exits:
            if item.local_rank is not None:
                self._task_is_rank = self._task_is_rank and item.hit.origin.task is None
                for place in {item.node, place_of(item.hit.origin)} - {None} or {None}:
                    self._bases[place] |= set() if item.rank is None else {item.rank - item.local_rank}
        if launch.per_node is not None:
            for node, ranks in self._of_node.items():
                self._bases[node].add(min(ranks) // launch.per_node * launch.per_node)

    def _spans_nodes(self, launch: Launch) -> bool:
        """Whether the job's lines or sizes show more than one node."""
        is_larger = (launch.world_size or 0) > (launch.per_node or launch.world_size or 0)
        return (
            any(base > 0 for bases in self._bases.values() for base in bases)
            or len(self._bases.keys() - {None}) > 1
            # If agents print only local ranks, each host with output has an agent.
            or (len(self._nodes - {None}) > 1 and any(item.local_rank is not None for item in launch.exits))
            or (not self._task_is_rank and len(self._tasks) > 1)
            or is_larger
        )

    def _read(self, line: str, scan: SourceScan) -> None:
        """Note the facts in one line's prefix: its rank, and the rank's node, task and process."""
        origin, rest = split_prefix(line, scan.hosts)
        origin = origin.over(Origin(local_rank=scan.origin.local_rank, node=scan.origin.node))
        if (known := _OF_AGENT.search(rest)) is not None:
            self._bases[place_of(origin)].add(whole(known.group(1)))
        rank = origin.rank
        self._nodes.add(origin.node)
        if origin.task is not None:
            self._tasks.add(origin.task)
        if origin.local_rank is not None:
            self._task_is_rank = self._task_is_rank and origin.task is None
            own = rank if rank is not None else own_rank(rest)
            self._bases[place_of(origin)] |= set() if own is None else {own - origin.local_rank}
        if rank is None:
            return
        self._seen.add(rank)
        if origin.node is not None and origin.local_rank is None:
            self._of_node[origin.node].add(rank)
        if origin.task is not None and origin.task != rank:
            self._task_is_rank = False
        if origin.pid is not None:
            self._launch.rank_by_pid.setdefault(origin.pid, rank)

    @property
    def seen(self) -> frozenset[int]:
        """All ranks with any output."""
        return frozenset(self._seen)

    def only_silent(self) -> int | None:
        """The only rank without output; None if there are several."""
        world = self._launch.world_size or (max(self._seen, default=-1) + 1)
        return only_absent(world, self._seen) if world > 2 else None

    def only_speaker(self) -> int | None:
        """The only rank in all prefixes, if nothing shows that there are others."""
        return min(self._seen) if len(self._seen) == 1 and (self._launch.world_size or 1) == 1 else None

    def from_local(self, local: int, place: str | None, *, failed: bool = True) -> int | None:
        """A local rank as a global one; None if the node's first rank is unknown.

        `place`: see `place_of`. `failed`: it failed first, so it did not wait.
        """
        everywhere = {base for of_place in self._bases.values() for base in of_place}
        bases = everywhere if place is None else self._bases[place]
        found = {base + local for base in bases}
        if len(found) > 1 and failed:
            # None of the ranks that only waited, or were ended because of others, failed first.
            ended = {item.rank for item in self._launch.exits if item.code in ENDED_FOR_OTHERS}
            found -= self._waited | ended
        if len(found) == 1 and not (place is None and self.multi_node and len(bases) == 1):
            return found.pop()
        if len(alone := self._of_node[place]) == 1 and min(alone) >= local:
            return min(alone)
        if self._launch.numbered and (match := re.fullmatch(r"node(\d+)", place or "")):
            return whole(match.group(1)) * (self._launch.per_node or 1) + local
        return None if self.multi_node else local

    def of_prefix(self, hit: Hit, *, failed: bool = True) -> int | None:
        """The rank in a line's own prefix, or implied by its node and local rank. `failed`: see `from_local`."""
        origin = hit.origin
        if origin.rank is not None or origin.local_rank is None:
            return origin.rank
        return self.from_local(origin.local_rank, place_of(origin), failed=failed)

    def from_task(self, task: int) -> int | None:
        """A launcher's task number as a rank, if each task runs one process."""
        return task if self._task_is_rank else None

    def of(self, hit: Hit, failure: FailureClass) -> int | None:
        """The rank of a hit, or None if unknown: the most reliable source first."""
        if hit.origin.rank is not None:
            # All ranks print a distributed checkpoint's report, which names the rank of the quoted traceback.
            quoted = frames_above(hit).quoted_rank
            return quoted if quoted is not None else hit.origin.rank
        frames = frames_above(hit)
        named = (inline_rank(hit.text), frames.spawn_rank, frames.announced)
        if (rank := next((rank for rank in named if rank is not None), None)) is not None:
            return rank
        if hit.origin.local_rank is not None:
            return self.of_prefix(hit)
        for find in (self._by_process, self._by_task, self._by_lines_below, self._by_device):
            if (rank := find(hit, failure)) is not None:
                return rank
        return None

    def _by_process(self, hit: Hit, _failure: FailureClass) -> int | None:
        """By the process in the line, or the one Ray names below it."""
        by_ray = "raylet" in hit.text or "killed due to" in hit.text
        below = [pid_of(line) for line in hit.lines_after(14)] if by_ray else []
        for pid in (pid_of(hit.text), hit.origin.pid, *below):
            if pid is None:
                continue
            if pid in self._launch.rank_by_pid:
                return self._launch.rank_by_pid[pid]
            item = next((item for item in self._launch.exits if item.pid == pid), None)
            if item is not None:
                return self.of_exit(item)
        return None

    def _by_task(self, hit: Hit, failure: FailureClass) -> int | None:
        """By the launcher's task in the prefix, or the one srun reports as out of memory below slurmstepd's line."""
        task = hit.origin.task if failure is not FailureClass.TERMINATED else None
        if task is None and hit.has(Trait.NAMES_TASK):
            below = (
                re.search(r"\btasks? (\d+)(?![\d,-]): Out Of Memory", line) for line in hit.lines_after(6)
            )
            task = next((whole(match.group(1)) for match in below if match), None)
        return self.from_task(task) if task is not None else None

    def _by_lines_below(self, hit: Hit, _failure: FailureClass) -> int | None:
        found = (re.search(_ASCEND, line) for line in hit.lines_after(6))
        return next((whole(match.group(1)) for match in found if match), None)

    def _by_device(self, hit: Hit, failure: FailureClass) -> int | None:
        """By the visible device in the message."""
        device = device_of(hit.text)
        if device is None and failure is FailureClass.NAN_LOSS:
            below = (device_of(line) for line in hit.lines_after(2)[:2])
            device = next((found for found in below if found is not None), None)
        return self.from_local(device, place_of(hit.origin)) if device is not None else None

    def node_of(self, origin: Origin) -> str | None:
        """The node in a prefix; a task's number if each task is a node."""
        return origin.node if self._task_is_rank else place_of(origin)

    def blamed(self) -> int | None:
        """The rank that the launcher saw fail, if it names just one or reports the first."""
        if self._launch.root_rank is not None:
            return self._launch.root_rank
        item = self.blamed_exit()
        return self.of_exit(item) if item is not None else None

    def blamed_exit(self) -> Exit | None:
        """The end that a launcher reports for the failed process, if it names one."""
        launch = self._launch
        own = [
            item for item in launch.exits
            if item.code not in {0, -15} and not (item.pid in launch.sigtermed and item.code < 0)
        ]  # fmt: skip
        if (ranked := next((item for item in own if item.rank is not None), None)) is not None:
            return ranked
        tasks = {item.task for item in own if item.task is not None}
        if len(tasks) == 1 and all(item.task is not None for item in own):
            return own[0]
        return next((item for item in own if item.local_rank is not None), None)

    def of_exit(self, item: Exit) -> int | None:
        """The global rank of a process that ended."""
        if item.rank is not None:
            return item.rank
        if item.local_rank is not None:
            return self.from_local(item.local_rank, item.node or place_of(item.hit.origin))
        return self.from_task(item.task) if item.task is not None else None
