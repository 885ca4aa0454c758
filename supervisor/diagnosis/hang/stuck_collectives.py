"""Find the hanging collective and the missing ranks from flight-recorder dumps and NCCL's RAS report.

Each rank numbers the collectives in a process group (`collective_seq_id`). Groups are identified by both name and
description, because Megatron creates many with the same description, each numbered separately. A rank keeps a group
waiting if others are waiting in a collective it never called, or if it did not finish one that others finished (its GPU
stopped). Such ranks are at fault unless they are themselves waiting for others; those merely pass the wait on from
group to group. Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp (version 2.10), tools/flight_recorder in PyTorch.
RAS report lines: NCCL's src/ras/client_support.cc (2.24 to 2.28). A MISMATCH gives rank totals per count, and the outliers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.text.patterns import whole

_RANKS = re.compile(r"\d+")
_MAX_ENTRIES = 20_000
MOST_NAMED = 16
MOST_SHOWN = 4
# No rank gets the result of these before all have taken part. A broadcast's source may finish long before.
_BY_ALL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
# torch/csrc/distributed/c10d/ProcessGroup.hpp: the description of a group without one.
_NAMELESS = frozenset(("", "undefined"))


@dataclass(frozen=True, slots=True)
class Collective:
    """A hanging collective.

    Attributes:
        group: a description of the group.
        seq: the collective's number within that group.
        op: the kind of collective.
        missing: the ranks at fault; empty if every rank reached it.
        came: the ranks waiting in it.
        place: the user's line that called it, on a rank that reached it.
        unfinished: whether the ranks at fault did call it but, unlike the others, did not finish it.
        instead: the other collective, if any, called instead by the ranks at fault (or, in an even split, the rest).
    """

    group: str
    seq: int
    op: str
    missing: tuple[int, ...]
    came: tuple[int, ...]
    place: str | None = None
    unfinished: bool = False
    instead: str = ""

    @property
    def text(self) -> str:
        """A one-line description, such as ``all_reduce 412 of default_pg: rank 3 did not come``."""
        who = ranks_named(self.missing)
        if self.instead and not self.missing:
            what = f"the ranks differ: {ranks_named(self.came)} called it, the rest {self.instead}"
        elif self.instead:
            what = f"{who} called {self.instead} instead"
        elif not self.missing:
            what = "all ranks came, and it does not end"
        else:
            what = f"{who} did not {'finish it, others did' if self.unfinished else 'come'}"
        where = f", called at {self.place}" if self.place else ""
        return f"{self.op} {self.seq} of {self.group}: {what}{where}"


def ranks_at_fault(stuck: Iterable[Collective]) -> tuple[int, ...]:
    """Return every rank that is missing from at least one of these collectives."""
    return tuple(sorted({rank for item in stuck for rank in item.missing}))


def stuck_text(stuck: Sequence[Collective]) -> str:
    """Describe the collectives on one line. Return "" if there are none."""
    more = f"; and {len(stuck) - MOST_SHOWN} more" if len(stuck) > MOST_SHOWN else ""
    return "; ".join(item.text for item in stuck[:MOST_SHOWN]) + more


def stuck_collectives(dumps: Mapping[int, Mapping[str, Any]]) -> tuple[Collective, ...]:
    """Return the hanging collectives and the ranks at fault, or an empty tuple if the dumps do not show any.

    `dumps` is keyed by global rank. The state of a rank with no dump, or an empty one, is unknown. If a dump lacks
    a group that lists its rank as a member, the rank is not waiting in that group.
    """
    groups = _groups(dumps)
    waiting = [group for group in groups.values() if group.pending]
    several = Counter(key.description for key in groups)
    words = {}
    for key in (group.key for group in waiting):
        named = f"{key.description} ({key.name})" if several[key.description] > 1 else key.description
        words[key] = f"group {key.name}" if key.description in _NAMELESS else named
    if differing := [item for group in waiting if (item := _differing(group, words[group.key])) is not None]:
        return tuple(differing)
    found = _kept_waiting(waiting, words)
    if not found and (late := [group for group in waiting if group.behind]):
        # All late ranks wait elsewhere themselves. The group whose collective was called last holds up the others.
        group = max(late, key=_Group.waits_since_ns)
        found = [_collective(group, words[group.key], sorted(group.behind))]
    if not found and (together := [group for group in waiting if group.all_wait()]):
        group = min(together, key=_Group.waits_since_ns)
        found = [_collective(group, words[group.key], ())]
    return tuple(found)


def _kept_waiting(waiting: Sequence[_Group], words: Mapping[GroupKey, str]) -> list[Collective]:
    """Return collectives whose missing ranks are not waiting for any other rank or did not finish an earlier collective."""
    unfinished = {rank for group in waiting for rank in group.unfinished}
    behind = {rank for group in waiting for rank in group.behind}
    at_fault = unfinished | {
        rank for rank in behind if not any(group.waits_for(rank, unfinished) for group in waiting)
    }
    found: list[Collective] = []
    # Each rank appears once, in the group that most of them keep waiting, or the one that waits longest.
    while at_fault:
        holding = [(group, sorted(at_fault & (group.behind | group.unfinished))) for group in waiting]
        group, ranks = max(holding, key=lambda item: (len(item[1]), -item[0].waits_since_ns()))
        found.append(_collective(group, words[group.key], ranks))
        at_fault -= set(ranks)
    return found


class GroupKey(NamedTuple):
    """Identifies a process group."""

    name: str
    description: str


class _Entry(NamedTuple):
    """A collective on a single rank."""

    op: str
    created_ns: int
    place: str | None


@dataclass(slots=True)
class _Group:
    """Dumps for a process group. `last` and `done` map each rank to its last called and last finished collective."""

    key: GroupKey
    members: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    pending: dict[int, dict[int, _Entry]] = field(default_factory=lambda: defaultdict(dict))
    # `work_out_late` derives these: the collectives that some rank waits in, the last one that some rank
    # finished, whether a member's dump is missing, and which ranks are late.
    waited: tuple[int, ...] = ()
    finished: int = 0
    unrecorded: bool = False
    behind: set[int] = field(default_factory=set)
    unfinished: set[int] = field(default_factory=set)

    def take_in(self, rank: int, seq: int, entry: Mapping[str, Any]) -> None:
        """Record a collective that a rank called."""
        self.last[rank] = max(seq, self.last.get(rank, seq))
        if entry.get("state") == "completed" or entry.get("retired") is True:
            self.done[rank] = max(seq, self.done.get(rank, seq))
            return
        op = (_text(entry.get("profiling_name"), 400) or "collective").rpartition(":")[2][:80]
        self.pending[rank][seq] = _Entry(op, _whole(entry.get("time_created_ns")) or 0, _place(entry))

    def work_out_late(self, recorded: set[int], dumped: set[int]) -> None:
        """Determine which ranks are late, once all dumps have been read. `recorded` holds the members listed in dumps."""
        self.members = set(self.last) | (recorded & dumped)
        self.unrecorded = not recorded <= dumped
        self.waited = tuple(sorted({seq for entries in self.pending.values() for seq in entries}))
        self.finished = max(self.done.values(), default=0)
        self.behind = {rank for rank in self.members if self.missed_by(rank) is not None}
        self.unfinished = {rank for rank in self.pending if self.left_by(rank) is not None}

    def missed_by(self, rank: int) -> int | None:
        """Return the first collective that others are waiting in but that this rank never called."""
        last = self.last.get(rank)
        if last is None:
            return self.waited[0] if self.waited else None
        return next((seq for seq in self.waited if seq > last), None)

    def left_by(self, rank: int) -> int | None:
        """Return the first collective that others finished and this rank called but did not finish."""
        own = self.pending.get(rank, {}).items()
        return min(
            (seq for seq, entry in own if seq <= self.finished and _BY_ALL.search(entry.op)), default=None
        )

    def waits_for(self, rank: int, stopped: set[int]) -> bool:
        """Check whether a rank in this group is waiting for a rank that is missing or in `stopped`."""
        own = self.pending.get(rank)
        if not own:
            return False
        late = any(self.last.get(peer, 0) < max(own) for peer in self.behind if peer != rank)
        return late or bool((self.members & stopped) - {rank})

    def all_wait(self) -> bool:
        """Check whether all members of a multi-rank group are waiting in a collective rather than for a particular rank."""
        return len(self.members) > 1 and self.members == set(self.pending) and not self.unrecorded

    def waits_since_ns(self) -> int:
        """Return the time at which the earliest pending collective was called."""
        return min(
            (entry.created_ns for entries in self.pending.values() for entry in entries.values()), default=0
        )


def _groups(dumps: Mapping[int, Mapping[str, Any]]) -> dict[GroupKey, _Group]:
    """Return every group in which a rank called a collective or is waiting, keyed by group."""
    groups: dict[GroupKey, _Group] = {}
    with_p2p: set[GroupKey] = set()
    status: list[tuple[int, GroupKey, int, int]] = []
    recorded: dict[GroupKey, set[int]] = defaultdict(set)
    dumped: set[int] = set()
    for rank, dump in dumps.items():
        if not dump:
            continue
        dumped.add(rank)
        config = _config(dump)
        for key, members in config.items():
            recorded[key] |= members
        numbers: dict[str, GroupKey] = {}
        entries = dump.get("entries")
        for entry in entries[-_MAX_ENTRIES:] if isinstance(entries, list) else ():
            if not isinstance(entry, dict):
                continue
            number, seq = _text(entry.get("pg_id")), _whole(entry.get("collective_seq_id"))
            group_names = entry.get("process_group")
            key = GroupKey(number, "")
            if isinstance(group_names, list | tuple) and len(group_names) >= 2:
                key = GroupKey(_text(group_names[0]), _text(group_names[1]))
            numbers[number] = key
            if entry.get("is_p2p") is True:
                with_p2p.add(key)
            elif seq is not None:
                groups.setdefault(key, _Group(key)).take_in(rank, seq, entry)
        status += [(rank, *row) for row in _status(dump, config, numbers)]
    for rank, key, called, done in status:
        # Sends and receives of a group are counted separately, and the status does not show which it counts.
        group = groups.get(key)
        if group is not None and key not in with_p2p:
            group.last[rank] = max(called, group.last.get(rank, called))
            group.done[rank] = max(done, group.done.get(rank, done))
    for group in groups.values():
        group.work_out_late(recorded[group.key], dumped)
    return groups


def _status(
    dump: Mapping[str, Any], config: Mapping[GroupKey, set[int]], numbers: Mapping[str, GroupKey]
) -> list[tuple[GroupKey, int, int]]:
    """Return a rank's last called and last finished collective in each group, based on `pg_status`.

    `pg_status` uses the rank's own group numbers, which increase in creation order, as do the group names. A dump
    of active work has only the numbers of groups in which the rank is waiting. The rest are inferred from that order.
    """
    found = dump.get("pg_status")
    if not isinstance(found, dict):
        return []
    known = dict(numbers)
    digits = [text for number in found if (text := _text(number)).isdecimal()]
    if len(digits) == len(config) and all(key.name.isdecimal() for key in config):
        ordered = dict(
            zip(sorted(digits, key=whole), sorted(config, key=lambda key: whole(key.name)), strict=True)
        )
        if all(ordered.get(number, key) == key for number, key in numbers.items()):
            known = ordered
    rows = []
    for number, row in found.items():
        key = known.get(_text(number))
        if key is None or not isinstance(row, dict):
            continue
        called = _whole(row.get("last_enqueued_collective"))
        done = _whole(row.get("last_completed_collective"))
        if called is not None and done is not None and called >= 0:
            rows.append((key, called, done))
    return rows


def _differing(group: _Group, words: str) -> Collective | None:
    """Return the first collective number for which the ranks called different operations."""
    by_seq: dict[int, dict[int, _Entry]] = defaultdict(dict)
    for rank, entries in group.pending.items():
        for seq, entry in entries.items():
            by_seq[seq][rank] = entry
    for seq, entries in sorted(by_seq.items()):
        called = {rank: entry.op for rank, entry in entries.items()}
        kinds = Counter(called.values()).most_common()
        if len(kinds) < 2:
            continue
        usual, agreed = kinds[0]
        odd = sorted(rank for rank, what in called.items() if what != usual)
        came = sorted(set(called) - set(odd))
        instead = called[odd[0]] if len(kinds) == 2 else "others"
        # In a tie, only the source code can tell which call is wrong.
        at_fault = () if kinds[1][1] == agreed else tuple(odd)
        return Collective(words, seq, usual, at_fault, tuple(came), entries[came[0]].place, False, instead)
    return None


def _collective(group: _Group, words: str, ranks: Sequence[int]) -> Collective:
    left = [seq for rank in ranks if (seq := group.left_by(rank)) is not None]
    missed = [seq for rank in ranks if (seq := group.missed_by(rank)) is not None]
    unfinished = bool(ranks) and len(left) == len(ranks)
    seq = min(left if unfinished else missed or left or group.waited)
    came = {
        rank: entries[seq] for rank, entries in group.pending.items() if seq in entries and rank not in ranks
    }
    shown = came or {rank: group.pending[rank][seq] for rank in ranks if seq in group.pending.get(rank, {})}
    first = next(iter(shown.values()))
    return Collective(words, seq, first.op, tuple(ranks), tuple(sorted(came)), first.place, unfinished)


def ranks_named(ranks: Sequence[int]) -> str:
    """Format rank numbers as ``rank 3`` or ``ranks 1, 3``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:MOST_NAMED]))}" + (" …" if len(ranks) > MOST_NAMED else "")


def _place(entry: Mapping[str, Any]) -> str | None:
    frames = entry.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file = _text(frame.get("filename"), 4000)
        if file and "site-packages/" not in file and "torch/distributed/" not in file:
            return f"{file.rpartition('/')[2]}:{_text(frame.get('line'))}"[:120]
    return None


def _config(dump: Mapping[str, Any]) -> dict[GroupKey, set[int]]:
    """Return the members of each of a rank's groups. gloo does not record any."""
    config = dump.get("pg_config")
    found: dict[GroupKey, set[int]] = {}
    for group in config.values() if isinstance(config, dict) else ():
        if isinstance(group, dict) and isinstance(group.get("ranks"), str):
            key = GroupKey(_text(group.get("name")), _text(group.get("desc")))
            found[key] = {whole(digits) for digits in _RANKS.findall(group["ranks"][:100_000])}
    return found


def _text(value: object, most: int = 80) -> str:
    """Convert a name or number to text. Return "" for anything else, such as a list nested a thousand levels deep."""
    if isinstance(value, str):
        return value[:most]
    return str(value) if isinstance(value, int) and value.bit_length() < 200 else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_SECTION = re.compile(r"^#\d+-\d+ \([0-9a-f]+\)|different (?:collective|(\w+)) operation counts")
_LAUNCHED = r"(?:launched up to operation (\d+)|not launched any operations)"
_MANY = re.compile(rf"^\s+(\d+) ranks? ha(?:s|ve) {_LAUNCHED}")
_ONE = re.compile(rf"^\s+Rank (\d+) has {_LAUNCHED}")
_LISTED = re.compile(r"^\s+Rank (\d+) -- GPU")


@dataclass(frozen=True, slots=True)
class RasLag:
    """Ranks that launched fewer operations than the rest of their communicator. `ranks` are local to the communicator."""

    ranks: tuple[int, ...]
    launched: int
    others_launched: int
    operation: str | None = None

    @property
    def text(self) -> str:
        """A one-line description for display."""
        what = self.operation or "collective"
        return f"NCCL: {ranks_named(self.ranks)} launched {what} {self.launched}, the others {self.others_launched}"


def read_ras(text: str) -> tuple[RasLag, ...]:
    """Return the lagging ranks in each communicator; empty if all are even or the text is not a RAS report."""
    sections: list[tuple[str | None, dict[int, list[int]]]] = [(None, {})]
    current: int | None = None
    for line in text.splitlines():
        counts = sections[-1][1]
        if (begins := _SECTION.search(line)) is not None:
            sections.append((begins[1], {}))
            current = None
        elif (many := _MANY.match(line)) is not None:
            current = whole(many[2] or "0")
            counts[current] = []
        elif (one := _ONE.match(line)) is not None:
            current = whole(one[2] or "0")
            counts.setdefault(current, []).append(whole(one[1]))
        elif (listed := _LISTED.match(line)) is not None and current is not None:
            counts[current].append(whole(listed[1]))
    return tuple(
        RasLag(tuple(counts[count]), count, max(counts), operation)
        for operation, counts in sections
        for count in sorted(counts)[:-1]
        if counts[count]
    )
