"""Reads how processes ended from launcher reports: torchrun, DeepSpeed, Lightning, composer, mp.spawn, srun.

Sources: torch/distributed/elastic/multiprocessing/{api,errors}.py, deepspeed/launcher/launch.py,
torch/multiprocessing/spawn.py, lightning's subprocess launchers, composer's launcher, srun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from supervisor.diagnosis.scan.matched_lines import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import NOWHERE


class Exit(NamedTuple):
    """The end of one process. `code` is negative for a signal. `summary` marks torchrun's closing box."""

    code: int
    rank: int | None
    local_rank: int | None
    node: str | None
    pid: int | None
    hit: Hit
    summary: bool = False
    task: int | None = None


class Launch(NamedTuple):
    """The launchers' reports. `root_rank`: torchrun's first observed failure; `sigtermed`: pids it stopped; `numbered`: stoker named the nodes."""

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


# strsignal(3)'s first words, as srun prints them for a task.
_SRUN_WORDS = {"Segmentation": 11, "Bus": 7, "Aborted": 6, "Killed": 9, "Illegal": 4, "Floating": 8}


def read_launch(
    scans: Sequence[SourceScan], known_world: int | None = None, known_per_node: int | None = None
) -> Launch:
    """Collect the launchers' reports in all logs; sizes known from elsewhere take precedence."""
    exits, root_rank, launched = _exits(scans)
    sigtermed = _signalled_pids(scans)
    per_node, world = _sizes(scans)
    group = _group_size(exits, sigtermed)
    world = known_world or world or group
    per_node = known_per_node or per_node
    if per_node is None and len({item.node for item in exits if item.summary}) == 1:
        per_node = group
    highest = max((rank for scan in scans for rank in _ranks_seen(scan)), default=0)
    # Files of several nodes are one job of several ranks, whatever else the logs show.
    nodes = {scan.origin.node for scan in scans} - {None}
    world = max(world, highest + 1) if world is not None else None
    return Launch(
        tuple(exits),
        root_rank,
        tuple(dict.fromkeys(item.rank for item in exits if item.summary and item.rank is not None)),
        sigtermed,
        _ranks_by_pid(scans, exits),
        world,
        per_node,
        launched or len(nodes) > 1 or highest > 0 or (world or 1) > 1,
        known_per_node is not None,
    )


def _exits(scans: Sequence[SourceScan]) -> tuple[list[Exit], int | None, bool]:
    """All reported exits, torchrun's first observed failure, and whether any launcher reports."""
    exits: list[Exit] = []
    root_rank: int | None = None
    launched = False
    for hit in _hits(scans):
        if hit.has(Trait.LAUNCHER_REPORT):
            launched = launched or not hit.has(Trait.SHELL_EXIT)
            found = _exit(hit)
            if found is not None:
                exits.append(found)
                if root_rank is None and found.summary and _is_root_cause(hit):
                    root_rank = found.rank
        if hit.has(Trait.TASK_EXIT) and (event := _task_exit(hit)) is not None:
            exits.append(event)
    return exits, root_rank, launched


def _group_size(exits: Sequence[Exit], sigtermed: frozenset[int]) -> int | None:
    """One agent signals the survivors of its group: these and the failed ones are the group."""
    local = {item.pid for item in exits if item.pid is not None} | sigtermed
    return len(local) if len(local) > 1 else None


def _hits(scans: Sequence[SourceScan]) -> Iterable[Hit]:
    return (hit for scan in scans for hit in scan.hits)


def _signalled_pids(scans: Sequence[SourceScan]) -> frozenset[int]:
    """The processes that a launcher reports stopping."""
    return frozenset(
        whole(found.group(1) or found.group(2))
        for hit in _hits(scans)
        if hit.has(Trait.SIGNALS_PEERS)
        for text in (hit.text, *hit.lines_after(24))
        for found in _SIGNALLED.finditer(text)
    )


def _ranks_by_pid(scans: Sequence[SourceScan], exits: Sequence[Exit]) -> dict[int, int]:
    """Ranks by process id: first from exits, then from prefixes, then from Ray's own lines."""
    by_pid = {item.pid: item.rank for item in exits if item.pid is not None and item.rank is not None}
    for hit in _hits(scans):
        if hit.origin.rank is not None and hit.origin.pid is not None:
            by_pid.setdefault(hit.origin.pid, hit.origin.rank)
    for scan in scans:
        for line in scan.edges():
            if "pid=" in line and (match := _RAY.search(line)):
                pid, rank, its_rank, its_pid, worker_pid, worker_rank = match.groups()
                by_pid.setdefault(whole(pid or its_pid or worker_pid), whole(rank or its_rank or worker_rank))
    return by_pid


def with_known_exits(launch: Launch, codes: Mapping[int, int]) -> Launch:
    """Add directly observed exit codes by global rank. If one rank failed on its own, the launcher caused the -15 of the others."""
    failed = any(code not in {0, -15} for code in codes.values())
    own = {rank: code for rank, code in codes.items() if code != 0 and not (failed and code == -15)}
    reported = {(item.rank, item.code) for item in launch.exits}
    observed = tuple(
        Exit(code, rank, None, None, None, _NO_LINE)
        for rank, code in sorted(own.items())
        if (rank, code) not in reported
    )
    return launch._replace(exits=(*launch.exits, *observed))


_NO_LINE = Hit(
    Signature(-1, "exit-code", FailureClass.WORKER_CRASH, Role.CONFIRMATION, None, 30, "exit"),
    -1,
    0,
    "",
    NOWHERE,
)


def _task_exit(hit: Hit) -> Exit | None:
    """An exit that srun reports for one task, or a trainer's own JSON event."""
    if match := re.search(r"\btask (\d+): Exited with exit code (\d+)", hit.text):
        return Exit(whole(match.group(2)), None, None, None, None, hit, task=whole(match.group(1)))
    if match := re.search(r"\btasks? (\d+)([\d,-]*): ([A-Z][a-z]+)", hit.text):
        signal = _SRUN_WORDS.get(match.group(3))
        task = None if match.group(2) else whole(match.group(1))
        return Exit(-signal, None, None, None, None, hit, task=task) if signal else None
    if (match := re.search(r'"rank": ?(\d+)', hit.text)) and (
        code := re.search(r'"(?:exit)?code": ?(\d+)', hit.text)
    ):
        return Exit(whole(code.group(1)), whole(match.group(1)), None, None, None, hit)
    return None


def _ranks_seen(scan: SourceScan) -> Iterable[int]:
    for hit in scan.hits:
        if hit.origin.rank is not None:
            yield hit.origin.rank
    for line in (*scan.head[:200], *scan.tail[-400:]):
        if line.startswith("[rank") and (end := line.find("]")) > 5 and line[5:end].isdecimal():
            yield whole(line[5:end])


_SIZE_WORDS = ("proc", "node", "orld", "rank", "--gpus", "clients", "MEMBER")


def _sizes(scans: Sequence[SourceScan]) -> tuple[int | None, int | None]:
    """Processes per node and world size, as printed by commands, banners and programs."""
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


def _exit(hit: Hit) -> Exit | None:
    """The exit in a launcher's line; the first matching form counts."""
    if match := _SUMMARY.search(hit.text):
        return _torchrun_summary(match, hit)
    match = next((match for form in _EXITS if (match := form.search(hit.text))), None)
    if match is None:
        return None
    named = {name: part for name, part in match.groupdict().items() if part is not None}
    if "signal" in named:
        code = -whole(named["signal"])
    elif "name" in named:
        code = -_SIGNALS.get(named["name"], 1)
    else:
        code = whole(named.get("code", "1"))
    rank = (
        whole(named["rank"]) if "rank" in named else hit.origin.rank if "Child process" in hit.text else None
    )
    local = whole(named["local"]) if "local" in named else None
    if "index" in named:  # from torch.multiprocessing, which starts the processes of one node
        rank = local = whole(named["index"])
    elif any(words in hit.text for words in _QUOTE_COMMANDS):
        local = _local_rank(hit)
    pid = whole(named["pid"]) if "pid" in named else None
    return Exit(code, rank, local, named.get("node", hit.origin.node), pid, hit)


def _is_root_cause(hit: Hit) -> bool:
    """Whether torchrun's closing box names this exit as its first observed failure."""
    return any("Root Cause" in line for line in hit.lines_before(6))


def _local_rank(hit: Hit) -> int | None:
    """The local rank in the command that a launcher quotes."""
    found = _LOCAL_RANK.search(hit.text)
    return whole(found.group(1)) if found else None


def _torchrun_summary(match: re.Match[str], hit: Hit) -> Exit:
    rank = local = None
    host = hit.origin.node
    for line in reversed(hit.lines_before(6)):
        if named := _SUMMARY_RANK.search(line):
            rank, local = whole(named.group(1)), whole(named.group(2))
        if placed := _SUMMARY_HOST.search(line):
            host = placed.group(1)
    return Exit(whole(match.group(1)), rank, local, host, whole(match.group(2)), hit, summary=True)


# -- the signal in a line ----------------------------------------------------------------------------

# Linux numbers (signal(7)); the POSIX ones are the same on macOS except SIGBUS (10), which there exits with 138.
_SIGNAL_BY_NUMBER = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_SIGNAL_NAME = Lazy(r"\bSIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL)\b")
_SIGNAL_NUMBER = Lazy(
    r"(?:exit ?code *[:=]?|return code =|code [:=]?|status) *\(?(-\d{1,2}|1[34]\d)\b|[Ss]ignal:? (\d{1,2})\b"
)
# As printed by strsignal(3) and shells; a POSIX shell adds 128 to the number.
_SIGNAL_WORDS = (
    ("SIGSEGV", Lazy(r"(?i)segmentation fault|\bsegfault|access violation|0xC0000005|段错误|段錯誤|セグメンテーション|Speicherzugriffsfehler|segmento\b|segmentação|сегментирования")),
    ("SIGBUS", Lazy(r"(?i)\bbus error")),
    ("SIGILL", Lazy(r"(?i)illegal (?:hardware )?instruction")),
    ("SIGFPE", Lazy(r"(?i)floating.point exception")),
    ("SIGABRT", Lazy(r"\bAborted\b|\bzsh: abort|terminate called|free\(\): |malloc|corrupted (?:size|double)|double free|munmap_chunk|stack smashing")),
)  # fmt: skip


def signal_of(text: str) -> str | None:
    """The signal's name; None if the line names none."""
    if match := _SIGNAL_NAME.search(text):
        return match.group()
    for name, words in _SIGNAL_WORDS:
        if words.search(text):
            return name
    if match := _SIGNAL_NUMBER.search(text):
        number = whole((match.group(1) or match.group(2)).lstrip("-"))
        return _SIGNAL_BY_NUMBER.get(number - 128 if number > 128 else number)
    return None


# -- SLURM's job states ------------------------------------------------------------------------------

# "JOB STATE CODES" in sacct(1) and squeue(1). sacct's default column is ten characters wide and marks a cut
# with a plus sign: OUT_OF_ME+, CANCELLED+. The states that decide alone; for all others (FAILED, COMPLETED,
# …) the job's own logs say more.
OUTCOMES: Final = {
    "OUT_OF_MEMORY": (FailureClass.HOST_OOM, Reason.SLURM),
    "TIMEOUT": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "DEADLINE": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "PREEMPTED": (FailureClass.TERMINATED, Reason.PREEMPTED),
    "NODE_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "BOOT_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "CANCELLED": (FailureClass.TERMINATED, Reason.USER),
}
_STATES = (*OUTCOMES, "COMPLETED", "FAILED")
_CUT_TO = 9
_SCONTROL = re.compile(r"JobState=([A-Z_]+)")
_SPELT = {spelt: state for state in reversed(_STATES) for spelt in (state, f"{state[:_CUT_TO]}+")}
_STATE_WORD = re.compile(r"(?<!\w)[A-Z_]+\+?(?!\w)")


def state_in(text: str, *, by_sacct: bool) -> str | None:
    """The first job state in a record of ``scontrol show job`` or ``sacct``; spelled out."""
    if match := _SCONTROL.search(text):
        return match[1]
    return (
        next((_SPELT[word] for word in _STATE_WORD.findall(text) if word in _SPELT), None)
        if by_sacct
        else None
    )
