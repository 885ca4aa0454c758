"""Analyze a hang: find the rank the others were waiting for, from their messages, stacks and flight-recorder dumps.

The rank that is elsewhere is the culprit; the ranks waiting for it in a collective are consequences. Stacks and
dumps outweigh log lines written when the hang ended.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from supervisor.diagnosis.attempt_facts import Facts, Root
from supervisor.diagnosis.evidence import SeenHang, SeenRecorder
from supervisor.diagnosis.hang.stacks import parse_stack, where, whose
from supervisor.diagnosis.hang.stuck_collectives import MOST_NAMED, ranks_named
from supervisor.diagnosis.launcher_reports import Launch, Ranks, inline_rank, only_absent
from supervisor.diagnosis.scan.matched_lines import Candidate, SourceScan
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.run.records import SURELY_OVER, Consequence, FailureClass
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import split_prefix

if TYPE_CHECKING:
    from supervisor.run.events import RanksAt


# -- by messages and dumps in the logs -----------------------------------------------------------------


class HangPlace(NamedTuple):
    """The frame in which a process is waiting."""

    source: int
    line: int
    text: str
    rank: int | None


# Messages with the awaited ranks: monitoredBarrier's, the store's, the desync report's, NCCL's set-up.
_WAITED_FOR = (
    Lazy(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier"),
    Lazy(r"missing ranks: ([\d, ]+)"),
    Lazy(r"\[([\d, ]+)\] finished .{0,60}, but didn't join"),
    Lazy(r"retrieving ncclUniqueId from \[(\d+)\]"),
)
_SEQ = Lazy(r"SeqNum=(\d+)|sequence id: (\d+)|at work: (\d+)|NCCL work: (\d+), last enqueued")
_COMPLETED = Lazy(r"last completed(?: \w+)? work: (-?\d+)")
_META = Lazy(r"workMetaList_\.size\(\)=(\d+)")
# A group's number differs between ranks. Its GUID, if a version prints it, does not.
_GROUP = Lazy(r"PG GUID (\w+)|PG (?:ID )?(\d+)")
_WAITING = (FailureClass.NCCL_TIMEOUT, FailureClass.HANG, FailureClass.NCCL_ERROR)


def _group_in(text: str) -> str:
    found = _GROUP.search(text)
    return next(part for part in found.groups() if part) if found else "0"


def _furthest_behind(complaints: Sequence[tuple[int, str]]) -> int | None:
    """Return the only rank with the lowest collective number in its group, if at least two ranks printed a number."""
    completed: defaultdict[str, dict[int, int]] = defaultdict(dict)
    timed_out: defaultdict[str, dict[int, int]] = defaultdict(dict)
    outstanding: dict[int, int] = {}
    for rank, text in complaints:
        if match := _COMPLETED.search(text):
            completed[_group_in(text)][rank] = whole(match[1])
        if match := _SEQ.search(text):
            timed_out[_group_in(text)].setdefault(rank, whole(next(part for part in match.groups() if part)))
        if match := _META.search(text):
            outstanding.setdefault(rank, whole(match[1]))
    for numbers in filter(None, (*completed.values(), *timed_out.values(), outstanding)):
        least = min(numbers.values())
        lowest = [rank for rank, number in numbers.items() if number == least]
        if len(numbers) >= 2 and len(lowest) == 1:
            return lowest[0]
    return None


def _read_complaints(candidates: Sequence[Candidate]) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the ranks that others were waiting for, according to messages, along with the complaints of the waiting ranks."""
    waited_for: list[int] = []
    complaints: list[tuple[int, str]] = []
    for item in candidates:
        text = item.hit.text
        named = (match[1] for pattern in _WAITED_FOR if (match := pattern.search(text)))
        waited_for += [whole(part) for group in named for part in group.replace(",", " ").split()]
        rank = item.rank if item.rank is not None else inline_rank(text)
        if rank is not None and not item.is_cause and item.failure in _WAITING:
            complaints.append((rank, text))
    return waited_for, complaints


def lagging_rank(candidates: Sequence[Candidate], launch: Launch, ranks: Ranks) -> int | None:
    """Return the rank that never arrived: the one its peers named, or the only one silent, furthest behind or without an exit."""
    waited_for, complaints = _read_complaints(candidates)
    if waited_for:
        return max(set(waited_for), key=waited_for.count)
    complaining = {rank for rank, _ in complaints}
    world = launch.world_size or (max(ranks.seen | complaining, default=-1) + 1)
    if world == 1 and launch.failed_ranks == (0,) and not launch.sigtermed:
        # A peer existed and needed no stop, so it had already exited with code 0.
        world = 2
    silent = only_absent(world, complaining)
    # A single rank's complaint does not show the number of ranks, if the launcher does not report it.
    if silent is not None and len(complaining) >= (1 if launch.world_size else 2):
        return silent
    if (behind := _furthest_behind(complaints)) is not None:
        return behind
    # If all ranks complain, the connection broke at the rank whose agent never reported its end.
    reported = {item.rank for item in launch.exits if item.rank is not None}
    return only_absent(world, reported) if reported else None


_LIBRARY = Lazy(
    r"(?:^|/)(?:threading|selectors|queue|socket|ssl|subprocess|contextlib|runpy)\.py|concurrent/futures|multiprocessing/|"
    r"(?:^|/)torch/|c10d_logger|libc|asyncio/|http/client|urllib3?/|<frozen"
)
_IN_COLLECTIVE = Lazy(
    r"all_?reduce|all_?gather|_engine_run_backward|run_backward|broadcast|barrier|reduce_scatter|c10d|distributed_c10d|reduce_boolean|\bsynchronize\b"
)


def hang_place(scans: Sequence[SourceScan], ranks: Ranks) -> HangPlace | None:
    """Return the first process that a logged stack dump shows outside a collective, or else the first one dumped."""
    first: HangPlace | None = None
    for scan in scans:
        for hit in scan.hits:
            if not hit.has(Trait.STACK_DUMP) or "Thread" not in hit.text:
                continue
            if "MainThread" not in hit.text and first is not None:
                continue
            found = _waiting_frame(hit.lines_after(40), hit.hosts)
            if found is None:
                continue
            below, text, in_collective = found
            rank = ranks.of_prefix(hit)
            if rank is None and hit.origin.local_rank is None:
                above = (hit.text, *reversed(hit.lines_before(8)))
                named = (re.search(r"\brank[ =:_]?(\d+)", line, re.IGNORECASE) for line in above)
                rank = next((whole(match[1]) for match in named if match), None)
            place = HangPlace(hit.source, hit.line + below, text, rank)
            if not in_collective:
                return place
            first = first or place
    return first


def _waiting_frame(lines: Sequence[str], hosts: Collection[str]) -> tuple[int, str, bool] | None:
    """Return the first thread's waiting frame, preferably the user's, as (lines below the header, text, in a collective)."""
    texts = [split_prefix(line, hosts)[1] for line in lines]
    thread = next(iter(parse_stack(["Thread 0", *texts])), None)
    pairs = zip(thread.at, thread.frames, strict=True) if thread is not None else ()
    # Native frames have no line.
    frames = list(takewhile(lambda pair: pair[1].line is not None, pairs))
    if not frames:
        return None
    below, in_collective = 0, False
    for at, frame in frames:
        in_collective = in_collective or _IN_COLLECTIVE.search(texts[at - 1]) is not None
        below = below or at
        if not _LIBRARY.search(frame.file):
            below = at
            break
    return below, texts[below - 1].strip(), in_collective


# -- by stoker's own stacks and dumps ------------------------------------------------------------------

# Signs of the end of a hang: stoker's own signals, peers with a lost connection, silence.
_ENDINGS = frozenset(
    (
        FailureClass.TERMINATED, FailureClass.UNKNOWN, FailureClass.HEALTHY, FailureClass.HANG,
        FailureClass.WORKER_CRASH, FailureClass.NCCL_TIMEOUT, FailureClass.NCCL_ERROR, FailureClass.RENDEZVOUS,
    )
)  # fmt: skip
# Signs that the waiting ranks gave up on their own, before stoker would have ended them.
_GIVEN_UP = frozenset((FailureClass.NCCL_TIMEOUT, FailureClass.HANG))
# No launcher and no exit code confirms the dumps.
BY_RECORDER = 0.85
ALL_IN_THE_FIRST = (
    "All ranks came to their first collective, and it does not end: GPUs cannot reach each other directly (PCIe ACS, an IOMMU "
    "or a virtual machine). Try NCCL_P2P_DISABLE=1, then NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME."
)
ALL_IN_ONE = "No rank is missing: look at the network and the links between the GPUs, with NCCL_DEBUG=INFO, and for Xid errors in `dmesg`."
MOST_GROUPS = 8
# Values of `stack_groups.Doing`.
_MEETINGS = frozenset(("collective", "backward"))
_WAITS = _MEETINGS | {"kernel"}


def hang_by_stacks(facts: Facts, root: Root) -> Root | None:
    """Return the root cause according to the stacks, if the attempt was stopped as a hang.

    A cause that a rank logged itself, such as an exception before it stopped responding, takes precedence. The
    hang is then a symptom.
    """
    seen = facts.job.hang
    if seen is None or not seen.ended_for_it:
        return None
    raised = root.chosen is not None and root.chosen.is_cause and not root.chosen.soft
    if raised and root.failure not in _ENDINGS:
        return None
    confidence = 0.92 if seen.ranks else 0.8
    return _from_stacks(seen, root._replace(failure=FailureClass.HANG, confidence=confidence))


def timeout_by_stacks(facts: Facts, root: Root) -> Root | None:
    """Return the ranks that timed-out ranks were waiting for, according to the stacks. The logs only suggest them.

    gloo does not involve NCCL, so with gloo the class becomes a hang.
    """
    seen = facts.job.hang
    if seen is None or seen.ended_for_it or not seen.path or root.failure not in _GIVEN_UP:
        return None
    own = root.chosen.rank if root.chosen is not None else None  # the complaining rank was waiting
    if root.rank not in {None, own, *seen.ranks}:
        return None
    if root.chosen is not None and "gloo" in root.chosen.text.lower():
        root = root._replace(failure=FailureClass.HANG)
    return _from_stacks(seen, root)


def _from_stacks(seen: SeenHang, root: Root) -> Root:
    rank = seen.ranks[0] if len(seen.ranks) == 1 else None
    at_fault = [group for group in seen.groups if seen.ranks and set(group.ranks) <= set(seen.ranks)]
    named = [f"{whose(group.ranks)} {where(group.what, group.line_at)}" for group in at_fault[:MOST_GROUPS]]
    text = ", ".join(named) + (", …" if len(at_fault) > MOST_GROUPS else "")
    text = text or seen.text
    if seen.collective:
        text = f"{text}; {seen.collective}"
    return Root(
        root.failure, None, rank, seen.ranks, None, seen.path, seen.line, text, root.confidence, shown_by=seen
    )


def title_of_absent(ranks: Sequence[int], failure: FailureClass) -> str | None:
    """Return the headline for a timeout whose absent ranks are known, or None for any other root cause."""
    if failure is not FailureClass.NCCL_TIMEOUT or not ranks:
        return None
    return f"A collective timed out: {ranks_named(ranks)} never joined it"


def hang_by_recorder(facts: Facts, root: Root) -> Root | None:
    """Return the ranks that are missing according to the dumps. A timeout keeps its class and line.

    Dumps outweigh silence, a bare crash, a stop or a wait. If the log says it finished, the dumps are from another time.
    """
    seen = facts.job.recorder
    if seen is None:
        return None
    rank = seen.ranks[0] if len(seen.ranks) == 1 else None
    if root.failure in _GIVEN_UP:
        return root._replace(rank=rank, ranks=seen.ranks, shown_by=seen) if seen.ranks else None
    applies = (
        root.failure in (FailureClass.UNKNOWN, FailureClass.TERMINATED)
        or (root.failure is FailureClass.HEALTHY and root.confidence < SURELY_OVER)
        or (root.failure is FailureClass.WORKER_CRASH and root.chosen is None)
    )
    if not applies:
        return None
    found = Root(FailureClass.HANG, None, rank, seen.ranks, path=seen.path, text=seen.text)
    return found._replace(confidence=BY_RECORDER, shown_by=seen)


def advice_by_recorder(seen: SeenRecorder, general: Sequence[str]) -> tuple[str, ...]:
    """Return what the dumps show and what to check next, followed by the class's own advice."""
    if not seen.ranks:
        return (ALL_IN_THE_FIRST if seen.at_start else ALL_IN_ONE, *general[1:])
    return (f"The flight recorder shows: {seen.text}.", *general)


def waited(seen: SeenHang) -> tuple[Consequence, ...]:
    """Return one consequence per waiting rank (or per large group), saying what it was waiting for or where it was."""
    if not seen.ranks or not seen.path:
        return ()
    found: list[Consequence] = []
    for group in seen.groups:
        if set(group.ranks) <= set(seen.ranks):
            continue
        waits = group.doing in _WAITS and group.what.startswith("in ")
        words = (
            f"waited for {ranks_named(seen.ranks)} {where(group.what, group.line_at)}"
            if waits
            else f"was {where(group.what, group.line_at)}"
        )
        named: Sequence[int | None] = group.ranks
        if len(group.ranks) > MOST_NAMED:
            named = (None,)
            words = f"{len(group.ranks)} ranks: {words}"
        for at, rank in enumerate(named):
            line = group.lines[at] if at < len(group.lines) else None
            found.append(Consequence(FailureClass.HANG, rank, seen.path, line, "", words))
    return tuple(found)


def advice_by_stacks(seen: SeenHang, general: Sequence[str]) -> tuple[str, ...]:
    """Return what the stacks show and what to check next, in place of the class's advice to collect stacks."""
    if not seen.groups:
        return tuple(general)
    first = next((group for group in seen.groups if set(group.ranks) <= set(seen.ranks)), None)
    return (_all_alike(seen) if first is None else _next_look(first), *general[1:])


def _next_look(first: RanksAt) -> str:
    shown = f"The stacks show {whose(first.ranks)} {where(first.what, first.line_at)}"
    match first.doing:
        case "own":
            return (
                f"Look why {first.line_at or 'it'} does not end (a loop without a bound, a lock, a file or a server that "
                f"does not answer): the stacks show {whose(first.ranks)} {first.what}, outside the collective."
            )
        case "collective" | "backward":
            return (
                f"{shown} and the others elsewhere: the ranks took different branches. Look for a "
                "collective under `if rank == …`, and for batches that differ in number."
            )
        case "data":
            return f"{shown}: look at what its data workers read, and give the DataLoader a timeout=."
        case "gpu":
            return f"{shown}: look for a kernel that does not end, and for Xid errors in `dmesg`."
        case "stopped":
            return f"{shown}: find out who suspended it; `kill -CONT` lets it continue."
        case _:
            return (
                f"Only the kernel's side was seen, {whose(first.ranks)} {where(first.what, first.line_at)}: with py-spy, or `[hang] faulthandler = true`, its line is told "
                "too."
            )


def _all_alike(seen: SeenHang) -> str:
    if any(group.doing not in _MEETINGS for group in seen.groups):
        return "The stacks show no rank apart from the others: look at the line that all of them stand at."
    if len({(group.what, group.line_at) for group in seen.groups}) > 1:
        return (
            "Look for the branch that parts the ranks (a collective under `if rank == …`, batches that differ in number): "
            "the stacks show each waiting at another line for the others."
        )
    return (
        "Look at the network and at the ranks of other nodes: the stacks show all ranks here in the same collective, and "
        "none is missing."
    )
