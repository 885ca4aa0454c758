"""Read process exits from launcher reports and determine which rank a line came from.

Launchers: torchrun, DeepSpeed, Lightning, composer, mp.spawn, srun. Sources:
    torch/distributed/elastic/multiprocessing/{api,errors}.py, deepspeed/launcher/launch.py,
torch/multiprocessing/spawn.py, lightning's subprocess launchers, composer's launcher, srun.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from supervisor.diagnosis.scan.matched_lines import Hit, SourceScan, frames_above
from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.records import FailureClass
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import NOWHERE, Origin, split_prefix


class Exit(NamedTuple):
    """A process exit. `code` is negative for a signal. `summary` is true for torchrun's closing summary box."""

    code: int
    hit: Hit
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    pid: int | None = None
    summary: bool = False
    task: int | None = None


class Launch(NamedTuple):
    """Launcher reports. `root_rank` failed first; torchrun stopped `sigtermed` (pids); if `numbered`, stoker named the nodes."""

    exits: tuple[Exit, ...]
    root_rank: int | None
    failed_ranks: tuple[int, ...]
    sigtermed: frozenset[int]
    rank_by_pid: dict[int, int]
    world_size: int | None
    per_node: int | None
    distributed: bool
    numbered: bool = False


_SUMMARY = Lazy(r"exitcode +: (-?\d+) \(pid: (\d+)\)")
_SUMMARY_RANK = Lazy(r"rank +: (\d+) \(local_rank: (\d+)\)")
_SUMMARY_HOST = Lazy(r"host +: (\S+)")
_LOCAL_RANK = Lazy(r"--local[-_]rank[= '\",]*(\d+)")
_SIGNALLED = Lazy(r"Sending process (\d+) closing signal|Killing subprocess (\d+)")
_PER_NODE = Lazy(
    r"nproc[-_]per[-_]node[= ]+(\d+)|nproc_per_node *: (\d+)|num_processes[= ]+(\d+)|--gpus[= ]+(\d+)\b"
)
_NODES = Lazy(r"--nnodes[= ]+(\d+)(?!:)\b|min_nodes *: (\d+)|num_nodes[= ]+(\d+)")
_WORLD = Lazy(
    r"world[_ ]size[:= ]+(\d+)|dist_world_size=(\d+)|MEMBER: \d+/(\d+)|world-size +(\d+)|\"world\": ?(\d+)|/(\d+) clients joined|\brank \d+ of (\d+)\b|\brank \d+/(\d+)\b",
    re.IGNORECASE,
)
_RAY = Lazy(
    r"pid=(\d+)\) (?:world_rank|rank)=(\d+)|world_rank=(\d+).{0,80}pid=(\d+)|pid=(\d+)[^)]*\) \[rank(\d+)\]"
)
# Launcher reports of a process's end. A form without a code or signal reports an exception.
_EXITS = (
    Lazy(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"),
    Lazy(r"exits with return code = (?P<code>-?\d+)"),
    Lazy(r"process (?P<index>\d+) terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<code>\d+))"),
    Lazy(r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) exited on signal (?P<signal>\d+)"),
    Lazy(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]"),  # Open MPI's first process that exited on its own
    Lazy(r"-- Process (?P<index>\d+) terminated with the following error"),
    Lazy(r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)"),
    Lazy(r"[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?(?:crashed with exit code|exited with code) (?P<code>-?\d+)"),
    Lazy(r"died with <Signals\.SIG\w+: (?P<signal>\d+)>"),
    Lazy(r"(?:returned non-zero exit status|make(?:\[\d+\])?: \*\*\* \[.+\] Error) (?P<code>\d+)"),
)  # fmt: skip


_QUOTE_COMMANDS = ("exits with return code", "died with <Signals")
_SIGNALS = {
    "SIGHUP": 1, "SIGINT": 2, "SIGILL": 4, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15,
}  # fmt: skip


# The first words of strsignal(3), as srun prints them for a task.
_SRUN_WORDS = {"Segmentation": 11, "Bus": 7, "Aborted": 6, "Killed": 9, "Illegal": 4, "Floating": 8}


def read_launch(
    scans: Sequence[SourceScan], known_world: int | None = None, known_per_node: int | None = None
) -> Launch:
    """Collect launcher reports from all logs. Sizes known from elsewhere take precedence."""
    hits = [hit for scan in scans for hit in scan.hits]
    exits = [item for hit in hits if (item := _exit(hit)) is not None]
    boxed = [item for item in exits if item.summary]
    sigtermed = _signalled(hits)
    per_node, world = _known_sizes(scans, exits, sigtermed, known_world, known_per_node)
    highest = max(map(_highest_rank, scans), default=0)
    world = max(world, highest + 1) if world is not None else None
    launched = any(hit.has(Trait.LAUNCHER_REPORT) and not hit.has(Trait.SHELL_EXIT) for hit in hits)
    # Files of several nodes are one job of several ranks, whatever else the logs show.
    is_larger = len({scan.origin.node for scan in scans} - {None}) > 1 or highest > 0
    return Launch(
        tuple(exits),
        next((item.rank for item in boxed if "Root Cause" in "".join(item.hit.lines_before(6))), None),
        tuple(dict.fromkeys(item.rank for item in boxed if item.rank is not None)),
        sigtermed,
        _ranks_by_pid(scans, exits),
        world,
        per_node,
        launched or is_larger or (world or 1) > 1,
        known_per_node is not None,
    )


def _known_sizes(
    scans: Sequence[SourceScan],
    exits: Sequence[Exit],
    sigtermed: frozenset[int],
    world: int | None,
    per_node: int | None,
) -> tuple[int | None, int | None]:
    """Return the processes per node and the world size: known, printed or, with a single agent, counted from its reports."""
    # One agent signals the survivors of its group. The signaled and failed processes form the group.
    pids = {item.pid for item in exits if item.pid is not None} | sigtermed
    group = len(pids) if len(pids) > 1 else None
    printed_per_node, printed_world = _sizes(scans)
    per_node = per_node or printed_per_node
    if per_node is None and len({item.node for item in exits if item.summary}) == 1:
        per_node = group
    return per_node, world or printed_world or group


def _exit(hit: Hit) -> Exit | None:
    """Return the exit that a launcher or srun reports on a line."""
    found = _launchers_exit(hit) if hit.has(Trait.LAUNCHER_REPORT) else None
    return _task_exit(hit) if found is None and hit.has(Trait.TASK_EXIT) else found


def _signalled(hits: Sequence[Hit]) -> frozenset[int]:
    """Return the pids of the processes that a launcher reports stopping."""
    reports = (hit for hit in hits if hit.has(Trait.SIGNALS_PEERS))
    texts = (text for hit in reports for text in (hit.text, *hit.lines_after(24)))
    return frozenset(whole(found[1] or found[2]) for text in texts for found in _SIGNALLED.finditer(text))


def _ranks_by_pid(scans: Sequence[SourceScan], exits: Sequence[Exit]) -> dict[int, int]:
    """Map process IDs to ranks, using exits first, then line prefixes, then Ray's own lines."""
    by_pid = {item.pid: item.rank for item in exits if item.pid is not None and item.rank is not None}
    for scan in scans:
        for hit in scan.hits:
            if hit.origin.rank is not None and hit.origin.pid is not None:
                by_pid.setdefault(hit.origin.pid, hit.origin.rank)
        for line in scan.edges():
            if "pid=" in line and (match := _RAY.search(line)):
                pid, rank, its_rank, its_pid, worker_pid, worker_rank = match.groups()
                by_pid.setdefault(whole(pid or its_pid or worker_pid), whole(rank or its_rank or worker_rank))
    return by_pid


def with_known_exits(launch: Launch, codes: Mapping[int, int]) -> Launch:
    """Add observed exit codes, keyed by global rank. If a rank failed on its own, skip -15 codes, which the launcher caused."""
    failed = any(code not in {0, -15} for code in codes.values())
    own = {rank: code for rank, code in codes.items() if code != 0 and not (failed and code == -15)}
    reported = {(item.rank, item.code) for item in launch.exits}
    observed = tuple(
        Exit(code, _NO_LINE, rank) for rank, code in sorted(own.items()) if (rank, code) not in reported
    )
    return launch._replace(exits=(*launch.exits, *observed))


_OBSERVED = Signature(
    -1, "exit-code", FailureClass.WORKER_CRASH, Role.CONFIRMATION, None, 30, "exit", confirm=False
)
_NO_LINE = Hit(_OBSERVED, -1, 0, "", NOWHERE)


def _highest_rank(scan: SourceScan) -> int:
    highest = max((hit.origin.rank or 0 for hit in scan.hits), default=0)
    for line in (*scan.head[:200], *scan.tail[-400:]):
        if line.startswith("[rank") and (end := line.find("]")) > 5 and line[5:end].isdecimal():
            highest = max(highest, whole(line[5:end]))
    return highest


_SIZE_WORDS = ("proc", "node", "orld", "rank", "--gpus", "clients", "MEMBER")


def _sizes(scans: Sequence[SourceScan]) -> tuple[int | None, int | None]:
    """Return processes per node and world size, as printed in commands, banners and program output."""
    per_node = nodes = world = None
    for scan in scans:
        # A short log's head is also its tail.
        short = scan.tail_line <= scan.first_line and len(scan.tail) <= len(scan.head)
        for line in scan.head if short else (*scan.head, *scan.tail[-200:]):
            if not any(word in line for word in _SIZE_WORDS):
                continue
            per_node = per_node if per_node is not None else _size(_PER_NODE.search(line))
            nodes = nodes if nodes is not None else _size(_NODES.search(line))
            size = _size(_WORLD.search(line))
            world = max(world or 0, size) if size is not None else world
    if world is None and per_node is not None:
        world = per_node * (nodes or 1)
    return per_node, world or None


def _size(match: re.Match[str] | None) -> int | None:
    return whole(next(group for group in match.groups() if group)) if match is not None else None


def _launchers_exit(hit: Hit) -> Exit | None:
    """Return the exit reported on a launcher's line. The first matching format wins."""
    if match := _SUMMARY.search(hit.text):
        return _torchrun_summary(match, hit)
    match = next((match for form in _EXITS if (match := form.search(hit.text))), None)
    if match is None:
        return None
    found = {name: part for name, part in match.groupdict().items() if part is not None}
    if "signal" in found or "name" in found:
        code = -(_SIGNALS.get(found.get("name", ""), 1) if "name" in found else whole(found["signal"]))
    else:
        code = whole(found.get("code", "1"))
    rank, local = (whole(found[name]) if name in found else None for name in ("rank", "local"))
    if rank is None and "Child process" in hit.text:
        rank = hit.origin.rank
    if "index" in found:  # from torch.multiprocessing, which starts the processes of one node
        rank = local = whole(found["index"])
    elif any(words in hit.text for words in _QUOTE_COMMANDS) and (quoted := _LOCAL_RANK.search(hit.text)):
        local = whole(quoted[1])
    pid = whole(found["pid"]) if "pid" in found else None
    return Exit(code, hit, rank, local, found.get("node", hit.origin.node), pid)


def _torchrun_summary(match: re.Match[str], hit: Hit) -> Exit:
    rank = local = None
    host = hit.origin.node
    for line in reversed(hit.lines_before(6)):
        if named := _SUMMARY_RANK.search(line):
            rank, local = whole(named[1]), whole(named[2])
        if placed := _SUMMARY_HOST.search(line):
            host = placed[1]
    return Exit(whole(match[1]), hit, rank, local, host, whole(match[2]), summary=True)


def _task_exit(hit: Hit) -> Exit | None:
    """Return the exit from srun's report on a task or from a trainer's own JSON event."""
    if match := re.search(r"\btask (\d+): Exited with exit code (\d+)", hit.text):
        return Exit(whole(match[2]), hit, task=whole(match[1]))
    if match := re.search(r"\btasks? (\d+)([\d,-]*): ([A-Z][a-z]+)", hit.text):
        signal = _SRUN_WORDS.get(match[3])
        return Exit(-signal, hit, task=None if match[2] else whole(match[1])) if signal else None
    rank, code = re.search(r'"rank": ?(\d+)', hit.text), re.search(r'"(?:exit)?code": ?(\d+)', hit.text)
    return Exit(whole(code[1]), hit, whole(rank[1])) if rank and code else None


# -- the rank of a line ----------------------------------------------------------------------------


# A torchrun agent's line about its group lists the group's ranks in the order of their local ranks.
_OF_AGENT = Lazy(r"^\s*global_ranks=\[(\d+)")
_OWN = r"\[(?:PG [^\]]*?)?Rank (\d+)\]"
# Exit codes caused by the launcher's SIGTERM or by a waiting rank's watchdog.
_ENDED_FOR_OTHERS = frozenset((-15, -6))


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
    """Return the number captured by the first matching pattern."""
    match = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return whole(next(group for group in match.groups() if group)) if match is not None else None


def only_absent(world: int, present: Collection[int]) -> int | None:
    """Return the one rank missing from `present`, or None if none or several are missing."""
    # A logged world size may be any number, so count ranks only if at most one can be absent.
    if world > len(present) + 1:
        return None
    absent = [rank for rank in range(world) if rank not in present]
    return absent[0] if len(absent) == 1 else None


def inline_rank(text: str) -> int | None:
    """Return the rank that a line's own text names as its source."""
    if "ank" not in text and "RANK" not in text and "device=TPU" not in text and not text.startswith("["):
        return None
    return _first_number(_INLINE, text)


def _own_rank(text: str) -> int | None:
    """Return the rank that PyTorch's C++ code names as its own, as in ``[Rank 3] Watchdog caught …``."""
    match = re.search(_OWN, text) if "Rank" in text else None
    return whole(match[1]) if match is not None else None


def device_of(text: str) -> int | None:
    """Return the visible CUDA device named in a message. It is usually a local rank, never a global one."""
    if not any(word in text for word in ("GPU", "NPU", "cuda", "NCCL WARN")):
        return None
    return _first_number(_DEVICES, text)


def _pid_of(text: str) -> int | None:
    """Return the process ID in a line from the kernel, Ray or NCCL."""
    if not any(word in text for word in ("pid", "PID", "process ", "segfault", "NCCL", "Signal", "***")):
        return None
    return _first_number(_PIDS, text)


def _place_of(origin: Origin) -> str | None:
    """Return the node of a local rank, from its prefix: the node's name, or the number of the task that ran torchrun."""
    if origin.node is not None or origin.task is None:
        return origin.node
    return str(origin.task)


class Ranks:
    """Resolves ranks for a job.

    A local rank is mapped to a global rank only on evidence from the job itself: a line containing both, a
    launcher's report, or a single node.
    """

    def __init__(self, scans: Sequence[SourceScan], launch: Launch) -> None:
        self._launch = launch
        # By place, the possible global ranks of its local rank 0. The place None is for lines without a node.
        self._bases: defaultdict[str | None, set[int]] = defaultdict(set)
        # By node, the ranks of lines without local ranks.
        self._of_node: defaultdict[str | None, set[int]] = defaultdict(set)
        self._task_is_rank = (launch.per_node or 1) == 1
        self._tasks: set[int] = set()
        self._seen: set[int] = set()
        self._nodes: set[str | None] = set()
        for scan in scans:
            for line in scan.edges():
                self._read(line, scan)
        local_exits = self._read_exits(launch)
        self.multi_node = self._spans_nodes(launch, local_exits)
        # A rank that complains about waiting had not failed before.
        self._waited = {
            rank
            for scan in scans
            for hit in scan.hits
            if hit.signature.failure is FailureClass.NCCL_TIMEOUT
            and (rank := hit.rank if hit.rank is not None else _own_rank(hit.text)) is not None
        }

    def _spans_nodes(self, launch: Launch, local_exits: Sequence[Exit]) -> bool:
        """Check whether the job's output or sizes show more than one node."""
        return (
            any(base > 0 for bases in self._bases.values() for base in bases)
            or len(self._bases.keys() - {None}) > 1
            # If agents print only local ranks, each host with output has an agent.
            or (len(self._nodes - {None}) > 1 and bool(local_exits))
            or (not self._task_is_rank and len(self._tasks) > 1)
            or (launch.world_size or 0) > (launch.per_node or launch.world_size or 0)
        )

    def _read_exits(self, launch: Launch) -> list[Exit]:
        """Return the exits with local ranks, noting each node's first rank from launcher reports or the node size."""
        local_exits = [item for item in launch.exits if item.local_rank is not None]
        for item in local_exits:
            self._task_is_rank = self._task_is_rank and item.hit.origin.task is None
            base = set() if item.rank is None else {item.rank - (item.local_rank or 0)}
            for place in {item.node, _place_of(item.hit.origin)} - {None} or {None}:
                self._bases[place] |= base
        if launch.per_node is not None:
            for node, ranks in self._of_node.items():
                self._bases[node].add(min(ranks) // launch.per_node * launch.per_node)
        return local_exits

    def _read(self, line: str, scan: SourceScan) -> None:
        """Record what a line's prefix says: the rank and that rank's node, task and process."""
        origin, rest = split_prefix(line, scan.hosts)
        origin = origin.over(Origin(local_rank=scan.origin.local_rank, node=scan.origin.node))
        if (known := _OF_AGENT.search(rest)) is not None:
            self._bases[_place_of(origin)].add(whole(known.group(1)))
        rank = origin.rank
        self._nodes.add(origin.node)
        if origin.task is not None:
            self._tasks.add(origin.task)
        if origin.local_rank is not None:
            self._task_is_rank = self._task_is_rank and origin.task is None
            own = rank if rank is not None else _own_rank(rest)
            self._bases[_place_of(origin)] |= set() if own is None else {own - origin.local_rank}
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
        """All ranks that produced any output."""
        return frozenset(self._seen)

    @property
    def any_told(self) -> bool:
        """Whether any line or path contains a rank, a local rank or a task."""
        return bool(self._seen or self._bases or self._tasks)

    def only_silent(self) -> int | None:
        """Return the only rank without output, or None if there is more than one."""
        world = self._launch.world_size or (max(self._seen, default=-1) + 1)
        return only_absent(world, self._seen) if world > 2 else None

    def only_speaker(self) -> int | None:
        """Return the only rank that appears in any prefix, if nothing points to other ranks."""
        return min(self._seen) if len(self._seen) == 1 and (self._launch.world_size or 1) == 1 else None

    def from_local(self, local: int, place: str | None, *, failed: bool = True) -> int | None:
        """Convert a local rank to a global rank, or return None if the node's first rank is unknown.

        For `place`, see `_place_of`. If `failed` is true, the rank failed first, so it was not merely waiting.
        """
        everywhere = {base for of_place in self._bases.values() for base in of_place}
        bases = everywhere if place is None else self._bases[place]
        found = {base + local for base in bases}
        if len(found) > 1 and failed:
            # A rank that only waited, or was ended because of others, did not fail first.
            ended = {item.rank for item in self._launch.exits if item.code in _ENDED_FOR_OTHERS}
            found -= self._waited | ended
        if len(found) == 1 and not (place is None and self.multi_node and len(bases) == 1):
            return found.pop()
        if len(alone := self._of_node[place]) == 1 and min(alone) >= local:
            return min(alone)
        if self._launch.numbered and (match := re.fullmatch(r"node(\d+)", place or "")):
            return whole(match.group(1)) * (self._launch.per_node or 1) + local
        return None if self.multi_node else local

    def of_prefix(self, hit: Hit, *, failed: bool = True) -> int | None:
        """Return the rank in a line's own prefix, or the one implied by its node and local rank. For `failed`, see `from_local`."""
        origin = hit.origin
        if origin.rank is not None or origin.local_rank is None:
            return origin.rank
        return self.from_local(origin.local_rank, _place_of(origin), failed=failed)

    def from_task(self, task: int) -> int | None:
        """Interpret a launcher's task number as a rank, if each task runs a single process."""
        return task if self._task_is_rank else None

    def of(self, hit: Hit, failure: FailureClass) -> int | None:
        """Return a hit's rank, or None if it is unknown. The most reliable source is tried first."""
        if hit.origin.rank is not None:
            # All ranks print a distributed checkpoint's report, which has the rank of the quoted traceback.
            quoted = frames_above(hit).quoted_rank
            return quoted if quoted is not None else hit.origin.rank
        frames = frames_above(hit)
        named = (inline_rank(hit.text), frames.spawn_rank, frames.announced)
        if (rank := next((rank for rank in named if rank is not None), None)) is not None:
            return rank
        if hit.origin.local_rank is not None:
            return self.of_prefix(hit)
        for find in (self._by_process, self._by_task, self._by_device):
            if (rank := find(hit, failure)) is not None:
                return rank
        return None

    def _by_process(self, hit: Hit, _failure: FailureClass) -> int | None:
        """Find the rank from the process named on the line or from one that Ray mentions below it."""
        by_ray = "raylet" in hit.text or "killed due to" in hit.text
        below = [_pid_of(line) for line in hit.lines_after(14)] if by_ray else []
        for pid in (_pid_of(hit.text), hit.origin.pid, *below):
            if pid is None:
                continue
            if pid in self._launch.rank_by_pid:
                return self._launch.rank_by_pid[pid]
            item = next((item for item in self._launch.exits if item.pid == pid), None)
            if item is not None:
                return self.of_exit(item)
        return None

    def _by_task(self, hit: Hit, failure: FailureClass) -> int | None:
        """Find the rank from the launcher task in the prefix, or from srun's out-of-memory line below the one from slurmstepd."""
        task = hit.origin.task if failure is not FailureClass.TERMINATED else None
        if task is None and hit.has(Trait.NAMES_TASK):
            below = (
                re.search(r"\btasks? (\d+)(?![\d,-]): Out Of Memory", line) for line in hit.lines_after(6)
            )
            task = next((whole(match.group(1)) for match in below if match), None)
        return self.from_task(task) if task is not None else None

    def _by_device(self, hit: Hit, failure: FailureClass) -> int | None:
        """Find the rank from the visible device named in the message."""
        device = device_of(hit.text)
        if device is None and failure is FailureClass.NAN_LOSS:
            below = (device_of(line) for line in hit.lines_after(2)[:2])
            device = next((found for found in below if found is not None), None)
        return self.from_local(device, _place_of(hit.origin)) if device is not None else None

    def node_of(self, origin: Origin) -> str | None:
        """Return the node in a prefix, or the task number if each task is a node."""
        return origin.node if self._task_is_rank else _place_of(origin)

    def blamed(self) -> int | None:
        """Return the rank that the launcher saw fail, if its report lists only one or says which was first."""
        if self._launch.root_rank is not None:
            return self._launch.root_rank
        item = self.blamed_exit()
        return self.of_exit(item) if item is not None else None

    def blamed_exit(self) -> Exit | None:
        """Return the launcher's report of the failed process's exit, if any."""
        launch = self._launch
        own = [
            item
            for item in launch.exits
            if item.code not in {0, -15} and not (item.pid in launch.sigtermed and item.code < 0)
        ]
        if (ranked := next((item for item in own if item.rank is not None), None)) is not None:
            return ranked
        tasks = {item.task for item in own if item.task is not None}
        if len(tasks) == 1 and all(item.task is not None for item in own):
            return own[0]
        return next((item for item in own if item.local_rank is not None), None)

    def of_exit(self, item: Exit) -> int | None:
        """Return the global rank of a process that exited."""
        if item.rank is not None:
            return item.rank
        if item.local_rank is not None:
            return self.from_local(item.local_rank, item.node or _place_of(item.hit.origin))
        return self.from_task(item.task) if item.task is not None else None


# -- the signal in a line ----------------------------------------------------------------------------

# Linux numbers (signal(7)). The POSIX ones are the same on macOS, except SIGBUS (10), which exits with 138 there.
_SIGNAL_BY_NUMBER = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_SIGNAL_NAME = Lazy(r"\bSIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL)\b")
_SIGNAL_NUMBER = Lazy(
    r"(?:exit ?code *[:=]?|return code =|code [:=]?|status) *\(?(-\d{1,2}|1[34]\d)\b|[Ss]ignal:? (\d{1,2})\b"
)
# As printed by strsignal(3) and shells. A POSIX shell adds 128 to the number.
_SIGNAL_WORDS = (
    ("SIGSEGV", Lazy(r"(?i)segmentation fault|\bsegfault|access violation|0xC0000005|段错误|段錯誤|セグメンテーション|Speicherzugriffsfehler|segmento\b|segmentação|сегментирования")),
    ("SIGBUS", Lazy(r"(?i)\bbus error")),
    ("SIGILL", Lazy(r"(?i)illegal (?:hardware )?instruction")),
    ("SIGFPE", Lazy(r"(?i)floating.point exception")),
    ("SIGABRT", Lazy(r"\bAborted\b|\bzsh: abort|terminate called|free\(\): |malloc|corrupted (?:size|double)|double free|munmap_chunk|stack smashing")),
)  # fmt: skip


def signal_of(text: str) -> str | None:
    """Return the name of the signal mentioned on a line, or None if there is none."""
    if match := _SIGNAL_NAME.search(text):
        return match.group()
    for name, words in _SIGNAL_WORDS:
        if words.search(text):
            return name
    if match := _SIGNAL_NUMBER.search(text):
        number = whole((match.group(1) or match.group(2)).lstrip("-"))
        return _SIGNAL_BY_NUMBER.get(number - 128 if number > 128 else number)
    return None
