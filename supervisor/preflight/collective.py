"""Before the job starts, forms a process group, runs one all-reduce, and measures each pair's transfer rate.

This machine's ranks are tested first, then all ranks of a multi-node job, provided the other nodes run the same check.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

import msgspec

from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, refuse, warn
from supervisor.preflight.meeting import Failed, meeting_point, why_not
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.records import Finding
from supervisor.text.decode import strip_escapes

# Importing torch in all ranks at once takes up to 20 s from a cold disk. The group itself waits MEET_S.
LIMIT_S: Final = 90.0
MEET_S: Final = 30
# The check is started on each node by hand, or by a sequence of commands.
NODES_MEET_S: Final = 60
NODES_LIMIT_S: Final = 120.0
TICK_S: Final = 0.05
PROBE_EVERY_S: Final = 15.0
"""How often to try the rendezvous while ranks on several nodes wait for each other."""
SLOW_RATIO: Final = 0.3
"""Pairs below this fraction of the norm are reported."""
SLOW_LINK: Final = 50e6
"""Bytes per second between two nodes. A slower link would carry less than half of what gigabit Ethernet can."""
MOST_NAMED: Final = 4
PAIRS: Final = "pairs "
# https://docs.pytorch.org/docs/stable/distributed.html: a file needs neither a port nor a name. Pairs are measured in rounds,
# each rank in one pair at a time: 1 MiB back and forth for 0.3 s, or 256 KiB once where that takes longer.
_RANK: Final = dedent("""
    import datetime, json, socket, sys, time
    import torch, torch.distributed as dist
    rank, ranks, path, wait_s, every, host, port = sys.argv[1:8]
    rank, ranks, wait_s, every = int(rank), int(ranks), int(wait_s), int(every)
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= min(every if host else ranks, ranks)
    if gpu:
        torch.cuda.set_device(rank % every if host else rank)
    backend, device = ("nccl", "cuda") if gpu else ("gloo", "cpu")
    wait = datetime.timedelta(seconds=wait_s)
    open(path + "-" + str(rank), "w").close()  # it has come this far
    store = dist.TCPStore(host, int(port), None, rank == 0, wait) if host else dist.FileStore(path, ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=wait)
    numbers = torch.full((1 << 20,), float(rank + 1), device=device)
    dist.all_reduce(numbers)
    right = bool((numbers == ranks * (ranks + 1) / 2).all())
    store = dist.PrefixStore("stoker", store)
    store.set("host/" + str(rank), socket.gethostname())

    def exchange(other, first, size, times):
        data = torch.zeros(size, dtype=torch.uint8, device=device)
        began = time.monotonic()
        for _ in range(times):
            for sends in (first, not first):
                (dist.send if sends else dist.recv)(data, other)
        if gpu:
            torch.cuda.synchronize()
        return time.monotonic() - began

    def measured(other, first):
        exchange(other, first, 1 << 10, 1)  # connects
        took_s, size, times = exchange(other, first, 1 << 18, 1), 1 << 18, 1
        asked = torch.tensor([min(32, int(0.3 / (4 * took_s)))], device=device)
        (dist.send if first else dist.recv)(asked, other)
        if int(asked):
            size, times = 1 << 20, int(asked)
            took_s = exchange(other, first, size, times)
        return 2 * size * times / took_s

    here = list(range(0, ranks, every if host else 1))[:64 if host else 16]
    ring, found = [*here, *([-1] * (len(here) % 2))], []
    for _ in range(len(ring) - 1):
        for a, b in zip(ring, ring[:len(ring) // 2 - 1:-1]):
            if rank in (a, b) and -1 not in (a, b):
                other, first = max(a, b) if rank == min(a, b) else min(a, b), rank == min(a, b)
                rate = measured(other, first)
                if first:
                    found.append([rank, other, rate])
        ring.insert(1, ring.pop())
    store.set("pairs/" + str(rank), json.dumps(found))
    every_pair = [pair for each in range(ranks) for pair in json.loads(store.get("pairs/" + str(each)))]
    hosts = [store.get("host/" + str(each)).decode() for each in here]
    store.add("left", 1)
    end = time.monotonic() + 10
    while rank == 0 and store.add("left", 0) < ranks and time.monotonic() < end:
        time.sleep(0.05)  # the others still read what this one keeps
    dist.destroy_process_group()
    print("pairs " + json.dumps({"pairs": every_pair, "hosts": hosts}), flush=True)
    print(backend if right else "wrong", flush=True)
""")


class _Pairs(msgspec.Struct, frozen=True):
    """Measurements: (rank, rank, bytes per second) for each pair, and the host of each rank."""

    pairs: list[tuple[int, int, float]]
    hosts: list[str]


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The ranks to connect. `first` is this machine's first rank. If `host` is empty, only its ranks connect, via a file."""

    first: int
    here: int
    ranks: int
    host: str = ""
    port: int = 0

    @property
    def nodes(self) -> int:
        """The number of participating nodes."""
        return self.ranks // self.here


def check_collective(
    context: CheckContext, *, limit_s: float = LIMIT_S, meet_s: int = MEET_S
) -> Iterator[Finding]:
    """Check whether this machine's ranks can connect and all-reduce 4 MiB, using the job's Python and environment."""
    ranks = context.spec.nproc_per_node
    yield from _meet(context, _Meeting(0, ranks, ranks), limit_s, meet_s)


def check_nodes_meet(
    context: CheckContext, *, limit_s: float = NODES_LIMIT_S, meet_s: int = NODES_MEET_S
) -> Iterator[Finding]:
    """Run the same check across all nodes at the job's rendezvous. Every node must run it within a minute."""
    spec = context.spec
    if not spec.several_nodes:
        return
    host, port = meeting_point(spec)
    nodes, here = spec.most_nodes, spec.nproc_per_node
    if not host or port is None or spec.node_rank >= nodes:
        return
    meeting = _Meeting(spec.node_rank * here, here, nodes * here, host, port)
    yield from _meet(context, meeting, limit_s, meet_s)


def _meet(context: CheckContext, meeting: _Meeting, limit_s: float, meet_s: int) -> Iterator[Finding]:
    spec, interpreter = context.spec, context.interpreter
    if spec.entry_kind is EntryKind.COMMAND or interpreter is None or interpreter.torch_version is None:
        return
    begun = time.monotonic()
    ranks = range(meeting.first, meeting.first + meeting.here)
    failed: Failed | None = None
    probe_due = begun + PROBE_EVERY_S
    with tempfile.TemporaryDirectory(prefix="stoker-check-") as folder:
        outputs = [Path(folder, f"{rank}") for rank in ranks]
        children: list[subprocess.Popen[bytes]] = []
        store = Path(folder, "store")
        try:
            # Start one by one inside the `try`, so that a failed start ends the ranks before.
            for rank, output in zip(ranks, outputs, strict=True):
                env = {**context.job_env, "LOCAL_RANK": str(rank - meeting.first)}
                children.append(_start(interpreter.path, env, meeting, rank, store, output, meet_s))
            codes = [child.poll() for child in children]
            # If one rank has failed, the others would wait for it.
            while None in codes and not any(codes) and time.monotonic() - begun < limit_s:
                time.sleep(TICK_S)
                if meeting.host and time.monotonic() >= probe_due:
                    failed = why_not(meeting.host, meeting.port)
                    probe_due = time.monotonic() + PROBE_EVERY_S
                codes = [child.poll() for child in children]
        finally:
            for child in children:
                if child.returncode is None:  # not reaped, so the pid still belongs to the child
                    os.killpg(child.pid, signal.SIGKILL)  # kills a wrapper's child too
                    child.wait()
        ended_t = time.time()
        texts = [output.read_text(encoding="utf-8", errors="replace") for output in outputs]
        begins = [Path(f"{store}-{rank}") for rank in ranks]
        waited_s = [ended_t - mark.stat().st_mtime if mark.exists() else None for mark in begins]
    said = [
        strip_escapes(text.strip().splitlines()[-1])[:300] if text.strip() else "it said nothing"
        for text in texts
    ]
    yield _judged(meeting, codes, said, waited_s, meet_s, time.monotonic() - begun, failed)
    pairs = next((found for text in texts if (found := _pairs_in(text)) is not None), None)
    if pairs is not None and pairs.pairs and not any(codes) and None not in codes:
        yield _bandwidth(meeting, pairs)


def _judged(
    meeting: _Meeting,
    codes: list[int | None],
    said: list[str],
    waited_s: list[float | None],
    meet_s: int,
    took_s: float,
    failed_way: Failed | None,
) -> Finding:
    """Judge the test. A rank that exited on its own is the cause; a rank that gave up after `meet_s` was only waiting."""
    fix = "`stoker run` would fail in the same way: look at the interface and the driver"
    never = [rank for rank, code in enumerate(codes) if waited_s[rank] is None and not code]
    ended = [rank for rank, code in enumerate(codes) if code]
    by_itself = [rank for rank in ended if (waited_s[rank] or 0.0) < meet_s]
    where = f"{meeting.host}:{meeting.port}"
    if meeting.host and not by_itself and not never and any(code != 0 for code in codes):
        what = f"the ranks of {meeting.nodes} nodes did not meet at {where} within {took_s:.0f} s"
        if failed_way is not None:
            return warn("collective", f"{what}: {failed_way.what}", failed_way.fix)
        return warn("collective", what, "run this check on all nodes at once, each with its --node-rank")
    if meeting.host and any("EADDRINUSE" in each for each in said):
        what = f"{where} is taken: the ranks cannot meet there"
        return warn("collective", what, "unless that is this very job, name another port")
    first = meeting.first
    if by_itself or (ended and not never):
        rank = (by_itself or ended)[0]
        what = f"rank {first + rank} of {meeting.ranks} ended with exit code {codes[rank]} as the ranks met: {said[rank]}"
        return refuse("collective", what, fix)
    if late := never or [rank for rank, code in enumerate(codes) if code is None]:
        named = ", ".join(str(first + rank) for rank in late[:8])
        what = f"{len(late)} of {meeting.ranks} ranks did not come within {took_s:.0f} s: {named}"
        return refuse("collective", what, fix)
    if "wrong" in said:
        what = f"the sum over {meeting.ranks} ranks is wrong on rank {first + said.index('wrong')}"
        return refuse("collective", what, "a GPU or its link is broken")
    what = f"{meeting.ranks} ranks met over {said[0]} and added up 4 MiB, in {took_s:.1f} s"
    if meeting.host:
        what = f"{meeting.ranks} ranks on {meeting.nodes} nodes met over {said[0]} and added up 4 MiB, in {took_s:.1f} s"
    return ok("collective", what)


# -- pairs -----------------------------------------------------------------------------------------------


def _bandwidth(meeting: _Meeting, measured: _Pairs) -> Finding:
    """Report each pair's bytes per second and warn about pairs much slower than the rest.

    Between nodes, the best pair shows what the network can do. Within a machine, wiring varies, so the median is used.
    """
    step, kind = (meeting.here, "nodes") if meeting.host else (1, "ranks")
    rates = {(a // step, b // step): rate for a, b, rate in measured.pairs}
    ordered = sorted(rates, key=rates.__getitem__)
    best = rates[ordered[-1]]
    norm = best if meeting.host else rates[ordered[len(ordered) // 2]]

    def named(pairs: Sequence[tuple[int, int]]) -> str:
        """Format pairs and their rates, slowest first: ``1–2 (gpu1, gpu2): 2 MB/s``."""
        words = []
        for a, b in pairs[:MOST_NAMED]:
            where = f" ({measured.hosts[a]}, {measured.hosts[b]})" if meeting.host else ""
            words.append(f"{a}–{b}{where}: {_rate(rates[a, b])}")
        more = len(pairs) - len(words)
        return ", ".join([*words, *([f"+{more}"] if more else [])])

    if slow := [pair for pair in ordered if rates[pair] < SLOW_RATIO * norm]:
        fix = "every step waits for the slowest: look at its cable, port, switch and driver, or leave it out"
        what = f"ranks {named(slow)}; the best pair {_rate(best)}"
        if meeting.host:
            what = f"nodes {named(slow)}; the best pair {_rate(best)}"
        return warn("bandwidth", what, fix)
    if meeting.host and best < SLOW_LINK:
        fix = "name the fast interface in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or see the link"
        return warn("bandwidth", f"nodes {named(ordered[:1])}: less than half of a gigabit link", fix)
    if len(ordered) <= MOST_NAMED:
        return ok("bandwidth", f"{kind} {named(ordered)}")
    low = _rate(rates[ordered[0]])
    if meeting.host:
        return ok("bandwidth", f"{len(ordered)} pairs of nodes: {low} to {_rate(best)}")
    return ok("bandwidth", f"{len(ordered)} pairs of ranks: {low} to {_rate(best)}")


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"


# -- processes ---------------------------------------------------------------------------------------------


def _start(
    python: str, env: dict[str, str], meeting: _Meeting, rank: int, store: Path, output: Path, meet_s: int
) -> subprocess.Popen[bytes]:
    words = (rank, meeting.ranks, store, meet_s, meeting.here, meeting.host, meeting.port)
    with output.open("wb") as file:
        return subprocess.Popen(
            [python, "-c", _RANK, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            cwd=os.sep,  # otherwise files in the current folder would come before installed ones
        )


def _pairs_in(text: str) -> _Pairs | None:
    lines = reversed(text.splitlines())
    found = next((line.removeprefix(PAIRS) for line in lines if line.startswith(PAIRS)), "")
    try:
        return msgspec.json.decode(found, type=_Pairs)
    except NOT_DECODED:
        return None
