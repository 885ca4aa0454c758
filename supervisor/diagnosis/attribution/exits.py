"""How processes ended, as launchers print it: torchrun, DeepSpeed, Lightning, composer, mp.spawn, srun.

Sources: torch/distributed/elastic/multiprocessing/{api,errors}.py, deepspeed/launcher/launch.py,
torch/multiprocessing/spawn.py, lightning's subprocess launchers, composer's launcher, srun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from supervisor.diagnosis.scan.scanner import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Role, Signature
from supervisor.run.failures import FailureClass
from supervisor.text.numbers import whole
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import NOWHERE


class Exit(NamedTuple):
    """One process's end. `code` is negative for a signal. `summary` marks torchrun's closing box."""

    code: int
    rank: int | None
    local_rank: int | None
    node: str | None
    pid: int | None
    hit: Hit
    summary: bool = False
    task: int | None = None


class Launch(NamedTuple):
    """What the launchers say. `root_rank` is torchrun's first observed failure; `sigtermed` the pids it stopped."""

    exits: tuple[Exit, ...]
    root_rank: int | None
    failed_ranks: tuple[int, ...]
    sigtermed: frozenset[int]
    rank_by_pid: dict[int, int]
    world_size: int | None
    per_node: int | None
    distributed: bool


@cache
def _patterns() -> dict[str, Lazy]:
    return {
        "failed": Lazy(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)"),
        "code": Lazy(r"exitcode +: (-?\d+) \(pid: (\d+)\)"),
        "rank": Lazy(r"rank +: (\d+) \(local_rank: (\d+)\)"),
        "host": Lazy(r"host +: (\S+)"),
        "deepspeed": Lazy(r"exits with return code = (-?\d+)"),
        "local": Lazy(r"--local[-_]rank[= '\",]*(\d+)"),
        "spawn": Lazy(r"process (\d+) terminated with (?:signal (SIG\w+)|exit code (\d+))"),
        "mpi": Lazy(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)"),
        "spawned": Lazy(r"-- Process (\d+) terminated with the following error"),
        "lightning": Lazy(r"(?:\[rank: (\d+)\] )?Child process with PID (\d+) terminated with code (-?\d+)"),
        "composer": Lazy(
            r"[Rr]ank (\d+) (?:\(PID (\d+)\) )?(?:crashed with exit code|exited with code) (-?\d+)"
        ),
        "died": Lazy(r"died with <Signals\.(SIG\w+): (\d+)>"),
        "nonzero": Lazy(r"returned non-zero exit status (\d+)"),
        "term": Lazy(r"Sending process (\d+) closing signal|Killing subprocess (\d+)"),
        "nproc": Lazy(
            r"nproc[-_]per[-_]node[= ]+(\d+)|nproc_per_node *: (\d+)|num_processes[= ]+(\d+)|--gpus[= ]+(\d+)\b"
        ),
        "nnodes": Lazy(r"--nnodes[= ]+(\d+)(?!:)\b|min_nodes *: (\d+)|num_nodes[= ]+(\d+)"),
        "world": Lazy(
            r"world[_ ]size[:= ]+(\d+)|dist_world_size=(\d+)|MEMBER: \d+/(\d+)|world-size +(\d+)|\"world\": ?(\d+)|/(\d+) clients joined|\brank \d+ of (\d+)\b|\brank \d+/(\d+)\b",
            re.IGNORECASE,
        ),
        "raypid": Lazy(
            r"pid=(\d+)\) (?:world_rank|rank)=(\d+)|world_rank=(\d+).{0,80}pid=(\d+)|pid=(\d+)[^)]*\) \[rank(\d+)\]"
        ),
        "ncclpid": Lazy(r"^[\w.-]+:(\d+):\d+ \[(\d+)\]"),
    }


_SIGNALS = {
    "SIGHUP": 1, "SIGINT": 2, "SIGILL": 4, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15,
}  # fmt: skip


# strsignal(3)'s first words, as srun prints them of a task.
_SAID_BY_SRUN = {"Segmentation": 11, "Bus": 7, "Aborted": 6, "Killed": 9, "Illegal": 4, "Floating": 8}


def read_launch(
    scans: Sequence[SourceScan], known_world: int | None = None, known_per_node: int | None = None
) -> Launch:
    """Collect what launchers said in all logs; what is known of the sizes otherwise wins."""
    patterns = _patterns()
    exits: list[Exit] = []
    sigtermed: set[int] = set()
    by_pid: dict[int, int] = {}
    root: int | None = None
    # Files of several nodes are one job of several ranks, whatever else is said.
    distributed = len({scan.origin.node for scan in scans if scan.origin.node is not None}) > 1
    for scan in scans:
        for hit in scan.hits:
            name = hit.signature.id
            if name.startswith(("launch-", "crash-spawn", "crash-lightning")):
                distributed = distributed or name != "launch-shell-exit"
                found, is_root = _exit(hit, patterns)
                if found is not None:
                    exits.append(found)
                    if found.pid is not None and found.rank is not None:
                        by_pid[found.pid] = found.rank
                    if is_root and root is None:
                        root = found.rank
            if name in {"launch-srun-exit", "silent-death"} and (event := _event(hit)) is not None:
                exits.append(event)
            if name == "launch-killing":
                for text in (hit.text, *hit.lines_after(24)):
                    for signalled in patterns["term"].finditer(text):
                        sigtermed.add(whole(signalled.group(1) or signalled.group(2)))
            if hit.origin.rank is not None and hit.origin.pid is not None:
                by_pid.setdefault(hit.origin.pid, hit.origin.rank)
        for line in scan.edges():
            if "pid=" in line and (match := patterns["raypid"].search(line)):
                groups = match.groups()
                if groups[0]:
                    by_pid.setdefault(whole(groups[0]), whole(groups[1]))
                elif groups[3]:
                    by_pid.setdefault(whole(groups[3]), whole(groups[2]))
                elif groups[4]:
                    by_pid.setdefault(whole(groups[4]), whole(groups[5]))
    per_node, world = _sizes(scans, patterns)
    per_node = known_per_node or per_node
    world = known_world or world
    if world is None:
        # One agent signals the survivors of its group: they and the fallen are the group.
        local = {item.pid for item in exits if item.pid is not None} | sigtermed
        world = len(local) if len(local) > 1 else None
    ranks = [rank for scan in scans for rank in _ranks_seen(scan)]
    if ranks:
        distributed = distributed or max(ranks) > 0
        if world is not None and max(ranks) >= world:
            world = max(ranks) + 1
    failed = tuple(dict.fromkeys(item.rank for item in exits if item.summary and item.rank is not None))
    return Launch(
        tuple(exits),
        root,
        failed,
        frozenset(sigtermed),
        by_pid,
        world,
        per_node,
        distributed or (world or 1) > 1,
    )


def with_known_exits(launch: Launch, codes: Mapping[int, int], first_dead: int | None) -> Launch:
    """Add exit codes that somebody saw himself, by global rank.

    Where one rank fell by itself, the -15 of the others is the launcher's doing; where the first to die is
    known, what came after it is too.
    """
    own = {rank: code for rank, code in codes.items() if code != 0}
    if first_dead is not None and own.get(first_dead):
        own = {first_dead: own[first_dead]}
    elif any(code != -15 for code in own.values()):
        own = {rank: code for rank, code in own.items() if code != -15}
    told = {(item.rank, item.code) for item in launch.exits}
    seen = tuple(
        Exit(code, rank, None, None, None, _UNSEEN)
        for rank, code in sorted(own.items())
        if (rank, code) not in told
    )
    if first_dead is not None and own:
        # What the launcher says of other ranks is later by its own clock.
        kept = tuple(item for item in launch.exits if item.rank in {None, first_dead})
        return launch._replace(exits=(*seen, *kept), root_rank=first_dead)
    return launch._replace(exits=(*launch.exits, *seen))


_UNSEEN = Hit(
    Signature(-1, "exit-code", FailureClass.WORKER_CRASH, Role.CONFIRMATION, None, 30, "exit"),
    -1,
    0,
    0,
    "",
    NOWHERE,
)


def _event(hit: Hit) -> Exit | None:
    """An exit that srun tells of one task, or a trainer's own JSON event."""
    if match := re.search(r"\btask (\d+): Exited with exit code (\d+)", hit.text):
        return Exit(whole(match.group(2)), None, None, None, None, hit, task=whole(match.group(1)))
    if match := re.search(r"\btasks? (\d+)([\d,-]*): ([A-Z][a-z]+)", hit.text):
        signal = _SAID_BY_SRUN.get(match.group(3))
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


def _sizes(scans: Sequence[SourceScan], patterns: dict[str, Lazy]) -> tuple[int | None, int | None]:
    per_node = nodes = world = None
    for scan in scans:
        for line in (*scan.head, *scan.tail[-200:]):
            if not any(word in line for word in _SIZE_WORDS):
                continue
            if per_node is None and (match := patterns["nproc"].search(line)):
                per_node = whole(next(group for group in match.groups() if group))
            if nodes is None and (match := patterns["nnodes"].search(line)):
                nodes = whole(next(group for group in match.groups() if group))
            if match := patterns["world"].search(line):
                world = max(world or 0, whole(next(group for group in match.groups() if group)))
    if world is None and per_node is not None:
        world = per_node * (nodes or 1)
    return per_node, world or None


def _exit(hit: Hit, patterns: dict[str, Lazy]) -> tuple[Exit | None, bool]:
    text, node = hit.text, hit.origin.node
    if match := patterns["failed"].search(text):
        code, local, pid = (whole(part) for part in match.groups())
        return Exit(code, None, local, node, pid, hit), False
    if match := patterns["code"].search(text):
        code, pid = whole(match.group(1)), whole(match.group(2))
        rank: int | None = None
        own: int | None = None
        is_root = False
        host = node
        for line in reversed(hit.lines_before(6)):
            if named := patterns["rank"].search(line):
                rank, own = whole(named.group(1)), whole(named.group(2))
            if placed := patterns["host"].search(line):
                host = placed.group(1)
            if "Root Cause" in line:
                is_root = True
        return Exit(code, rank, own, host, pid, hit, summary=True), is_root
    if match := patterns["deepspeed"].search(text):
        found = patterns["local"].search(text)
        return Exit(
            whole(match.group(1)), None, whole(found.group(1)) if found else None, node, None, hit
        ), False
    if match := patterns["spawn"].search(text):
        number, name, code_text = match.groups()
        code = -_SIGNALS.get(name, 0) if name else whole(code_text)
        return Exit(code or 1, whole(number), whole(number), node, None, hit), False
    if match := patterns["mpi"].search(text):
        number, pid_text, host, signal = match.groups()
        return Exit(-whole(signal), whole(number), None, host, whole(pid_text), hit), False
    if match := patterns["spawned"].search(text):
        return Exit(1, whole(match.group(1)), whole(match.group(1)), node, None, hit), False
    if match := patterns["lightning"].search(text):
        said, pid_text, code_text = match.groups()
        number = whole(said) if said else hit.origin.rank
        return Exit(whole(code_text), number, None, node, whole(pid_text), hit), False
    if match := patterns["composer"].search(text):
        return Exit(
            whole(match.group(3)),
            whole(match.group(1)),
            None,
            node,
            whole(match.group(2) or "0") or None,
            hit,
        ), False
    if match := patterns["died"].search(text):
        found = patterns["local"].search(text)
        return Exit(
            -whole(match.group(2)), None, whole(found.group(1)) if found else None, node, None, hit
        ), False
    if match := patterns["nonzero"].search(text):
        return Exit(whole(match.group(1)), None, None, node, None, hit), False
    return None, False
