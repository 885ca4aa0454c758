"""Which collective hangs, and who did not come to it, from the flight-recorder dumps of the ranks.

Each rank numbers the collectives of a process group (`collective_seq_id`). A rank whose last number is below the
others' never called the next one; where all have the same number, the one that some finished and others did not is it.
Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp (version 2.10), tools/flight_recorder in PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.text.numbers import whole

_RANKS = re.compile(r"\d+")
_MAX_ENTRIES = 20_000


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective that hangs. `place` is the user's line that called it, on a rank that did come."""

    group: str
    seq: int
    op: str
    missing: tuple[int, ...]
    came: tuple[int, ...]
    place: str | None = None

    @property
    def text(self) -> str:
        """One line: ``all_reduce 412 of default_pg: rank 3 did not come``."""
        who = (
            f"rank {self.missing[0]}"
            if len(self.missing) == 1
            else f"ranks {', '.join(map(str, self.missing))}"
        )
        where = f", called at {self.place}" if self.place else ""
        return f"{self.op} {self.seq} of {self.group}: {who} did not come{where}"


def stuck_collective(dumps: Mapping[int, Mapping[str, Any]]) -> Collective | None:
    """The first collective that some rank did not come to; None where the dumps do not show it.

    `dumps` are by global rank. A rank without a dump, or without an entry of the group, counts as unknown unless
    the group's members are recorded: then a member whose dump lacks the group did not come.
    """
    last: dict[str, dict[int, int]] = {}
    entries: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    members: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for name, ranks in _members(dump).items():
            members.setdefault(name, set()).update(ranks)
        for entry in _entries(dump):
            group, seq = _group(entry), _whole(entry.get("collective_seq_id"))
            if seq is None or entry.get("is_p2p") is True:
                continue
            last.setdefault(group, {})[rank] = max(seq, last.get(group, {}).get(rank, seq))
            entries.setdefault((group, seq), {})[rank] = entry
    found: list[Collective] = []
    for group, numbers in last.items():
        known = set(numbers) | (members.get(group, set()) & set(dumps))
        counts = {rank: numbers.get(rank, 0) for rank in known}
        least, most = min(counts.values()), max(counts.values())
        if least < most:
            missing = tuple(sorted(rank for rank, count in counts.items() if count == least))
            found.append(_collective(group, least + 1, missing, entries.get((group, least + 1), {})))
    # Of several groups, the one whose collective was called last holds the others up.
    return max(found, key=lambda item: _created(entries.get((item.group, item.seq), {})), default=None)


def _collective(
    group: str, seq: int, missing: tuple[int, ...], came: Mapping[int, Mapping[str, Any]]
) -> Collective:
    entry = next(iter(came.values()), {})
    op = str(entry.get("profiling_name") or "collective").rpartition(":")[2]
    return Collective(group, seq, op[:80], missing, tuple(sorted(came)), _place(entry))


def _place(entry: Mapping[str, Any]) -> str | None:
    frames = entry.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file = str(frame.get("filename") or "")
        if file and "site-packages/" not in file and "torch/distributed/" not in file:
            return f"{file.rpartition('/')[2]}:{frame.get('line')}"[:120]
    return None


def _entries(dump: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = dump.get("entries")
    return [e for e in found[-_MAX_ENTRIES:] if isinstance(e, dict)] if isinstance(found, list) else []


def _group(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        parts = [part for part in group if isinstance(part, str)]
        return (parts[-1] or parts[0])[:80] if parts else str(entry.get("pg_id"))[:80]
    return str(entry.get("pg_id"))[:80]


def _members(dump: Mapping[str, Any]) -> dict[str, set[int]]:
    config = dump.get("pg_config")
    found: dict[str, set[int]] = {}
    for group in config.values() if isinstance(config, dict) else ():
        if isinstance(group, dict) and isinstance(group.get("ranks"), str):
            name = str(group.get("desc") or group.get("name") or "")[:80]
            found[name] = {whole(digits) for digits in _RANKS.findall(group["ranks"][:100_000])}
    return found


def _created(came: Mapping[int, Mapping[str, Any]]) -> int:
    return max((_whole(entry.get("time_created_ns")) or 0 for entry in came.values()), default=0)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
