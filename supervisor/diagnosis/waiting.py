"""Finds the missing rank: behind a collective that timed out, or in a stack dump of a waiting process."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import NamedTuple

from supervisor.diagnosis.hang.stacks import parse_stack
from supervisor.diagnosis.launcher_reports import Launch, Ranks, inline_rank, only_absent
from supervisor.diagnosis.scan.matched_lines import Candidate, SourceScan
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import split_prefix


class HangPlace(NamedTuple):
    """The frame where a process waits."""

    source: int
    line: int
    text: str
    rank: int | None


# Messages that name the awaited ranks: monitoredBarrier's, the store's, the desync report's, NCCL's set-up.
_WAITED_FOR = (
    Lazy(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier"),
    Lazy(r"missing ranks: ([\d, ]+)"),
    Lazy(r"\[([\d, ]+)\] finished .{0,60}, but didn't join"),
    Lazy(r"retrieving ncclUniqueId from \[(\d+)\]"),
)
_SEQ = Lazy(r"SeqNum=(\d+)|sequence id: (\d+)|at work: (\d+)|NCCL work: (\d+), last enqueued")
_ENQUEUED = Lazy(r"[Ll]ast enqueued(?: \w+)? work: (-?\d+)")
_COMPLETED = Lazy(r"last completed(?: \w+)? work: (-?\d+)")
_META = Lazy(r"workMetaList_\.size\(\)=(\d+)")
# A group's number on one rank differs from that on another; its GUID, if a version prints it, does not.
_GROUP = Lazy(r"PG GUID (\w+)|PG (?:ID )?(\d+)")
_FROM_ANOTHER = Lazy(r"from +(?:another rank|rank \d)")
_WAITING = (FailureClass.NCCL_TIMEOUT, FailureClass.HANG, FailureClass.NCCL_ERROR)


class _Progress:
    """How far the complaining ranks had come, as their messages number their collectives."""

    def __init__(self) -> None:
        self.complaining: set[int] = set()
        # By group, for ranks whose own watchdog saw nothing: the last collective called, and the last finished.
        self._answered: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self._timed_out: dict[str, int] = {}
        self._completed: dict[str, dict[int, int]] = defaultdict(dict)
        self._sequence: dict[str, dict[int, int]] = defaultdict(dict)
        self._outstanding: dict[int, int] = {}

    def read(self, rank: int, text: str) -> None:
        """Read one rank's complaint."""
        self.complaining.add(rank)
        group = _group_in(text)
        if match := _COMPLETED.search(text):
            self._completed[group][rank] = whole(match.group(1))
        if match := _SEQ.search(text):
            number = whole(next(part for part in match.groups() if part))
            self._sequence[group].setdefault(rank, number)
            if "Rank" in text and _ENQUEUED.search(text):
                self._timed_out[group] = min(number, self._timed_out.get(group, number))
        if match := _META.search(text):
            self._outstanding.setdefault(rank, whole(match.group(1)))

    def read_answer(self, rank: int, text: str) -> None:
        """Read what a rank printed about its default group when another one's watchdog made it write its dump."""
        called, finished = _ENQUEUED.search(text), _COMPLETED.search(text)
        if called and finished and _FROM_ANOTHER.search(text):
            self._answered[_group_in(text)][rank] = whole(called.group(1)), whole(finished.group(1))

    def never_entered(self) -> list[int]:
        """The ranks that had finished all their calls, without the collective in which others timed out."""
        found = set()
        for group, number in self._timed_out.items():
            for rank, (called, finished) in self._answered[group].items():
                if called == finished < number and rank not in self.complaining:
                    found.add(rank)
        return sorted(found)

    def furthest_behind(self) -> int | None:
        """The one rank with the lowest number, if at least two ranks reported theirs."""
        for numbers in (*self._completed.values(), *self._sequence.values(), self._outstanding):
            if len(numbers) >= 2:
                least = min(numbers.values())
                lowest = [rank for rank, number in numbers.items() if number == least]
                if len(lowest) == 1:
                    return lowest[0]
        return None


def _group_in(text: str) -> str:
    found = _GROUP.search(text)
    return next(part for part in found.groups() if part) if found else "0"


def _read_complaints(candidates: Sequence[Candidate], ranks: Ranks) -> tuple[list[int], _Progress]:
    """The ranks that messages name as awaited, and how far each rank reports to have come."""
    waited_for: list[int] = []
    progress = _Progress()
    for item in candidates:
        text = item.hit.text
        named = (match[1] for pattern in _WAITED_FOR if (match := pattern.search(text)))
        waited_for += [whole(part) for ranks_named in named for part in ranks_named.replace(",", " ").split()]
        rank = item.rank if item.rank is not None else inline_rank(text)
        if rank is not None and not item.is_cause and item.failure in _WAITING:
            progress.read(rank, text)
    for hit in ranks.dump_answers:
        rank = hit.origin.rank if hit.origin.rank is not None else inline_rank(hit.text)
        if rank is not None:
            progress.read_answer(rank, hit.text)
    return waited_for, progress


def lagging_rank(candidates: Sequence[Candidate], launch: Launch, ranks: Ranks) -> int | None:
    """The rank that did not arrive: named by the waiting ranks, the only silent one, or the last."""
    waited_for, progress = _read_complaints(candidates, ranks)
    if waited_for:
        return max(set(waited_for), key=waited_for.count)
    if len(absent := progress.never_entered()) == 1:
        return absent[0]
    complaining = progress.complaining
    world = launch.world_size or (max(ranks.seen | complaining, default=-1) + 1)
    if world == 1 and launch.failed_ranks == (0,) and not launch.sigtermed:
        # A peer was there and needed no stop: it had already exited with code 0.
        world = 2
    silent = only_absent(world, complaining)
    # From one rank's complaint alone, the number of ranks is unknown, if the launcher does not report it.
    if silent is not None and len(complaining) >= (1 if launch.world_size else 2):
        return silent
    if (behind := progress.furthest_behind()) is not None:
        return behind
    # All ranks complain: the rank whose agent never reported its end is where the connection broke.
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
    """The process that a stack dump in the logs shows outside any collective, else the first one dumped."""
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
    """The user's frame where the first thread waits, or else its innermost one: lines below its head, text, whether below a collective."""
    texts = [split_prefix(line, hosts)[1] for line in lines]
    thread = next(iter(parse_stack(["Thread 0", *texts])), None)
    pairs = zip(thread.at, thread.frames, strict=True) if thread is not None else ()
    # Frames of native code have no line.
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
