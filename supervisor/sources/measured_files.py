"""Reads what the instrumentation wrote into an attempt's telemetry folder (docs/telemetry.md): records and latest batches.

A loop may draw batches ahead: accelerate draws one, and transformers draws all micro-batches of a step at once. The number of
backward passes tells which of them is in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from supervisor.run.records import UsedBatch
from supervisor.run.regular import open_regular
from supervisor.sources.telemetry import measured_record

MOST_BATCHES: Final = 8
LEAST_USUAL: Final = 8
"""With fewer batches than this there is no usual size."""
_FILE: Final = re.compile(r"measured(\d+)\.jsonl")


@dataclass(slots=True)
class _Rank:
    """What a rank's records say about its loaders and its end. `passes` is None if the process was killed or still lives."""

    places: dict[int, str] = field(default_factory=dict)
    feeding: set[int] = field(default_factory=set)
    passes: int | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        match record.get("kind"), record.get("loader", record.get("id")):
            case "phase", _:  # another process of this rank
                self.places, self.feeding, self.passes = {}, set(), None
            case "loader", int(number):
                self.places[number] = str(record.get("at", ""))
            case "shape", int(number) if record.get("of") == "forward":
                self.feeding.add(number)
            case "exit", _ if isinstance(record.get("passes"), int):
                self.passes = record["passes"]
            case _:
                pass


def measured_ranks(folder: Path) -> list[int]:
    """Return the ranks that have records in a telemetry folder."""
    return sorted({int(named[1]) for path in folder.glob("*.jsonl") if (named := _FILE.fullmatch(path.name))})


def rank_records(folder: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Yield a rank's records, oldest first. A file that is missing or damaged has fewer."""
    for name in (f"measured{rank}.jsonl.1", f"measured{rank}.jsonl"):
        yield from _records(folder / name)


def used_batches(folders: Iterable[Path], *, until: float | None = None) -> dict[int, tuple[UsedBatch, ...]]:
    """Return the batch in use at the end of each rank, or several if the records do not tell which of them it was.

    Args:
        folders: the attempt's telemetry folders, one for each node.
        until: ignore batches drawn after this moment, in seconds since the epoch.
    """
    from statistics import median  # 5 ms that a start does not need

    found = {}
    for folder, rank in [(each, rank) for each in folders for rank in measured_ranks(each)]:
        known = _Rank()
        for record in rank_records(folder, rank):
            known.add(record)
        drawn = filter(_is_entry, _records(folder / f"batches{rank}.jsonl"))
        entries = sorted(drawn, key=lambda one: one["n"])
        used = _in_use(entries, known, until)
        usual = median(map(_elements, entries)) if len(entries) >= LEAST_USUAL else 0
        found[rank] = tuple(_batch(one, rank, known, usual) for one in used[:MOST_BATCHES])
    return found


def _in_use(
    entries: Sequence[Mapping[str, Any]], rank: _Rank, until: float | None
) -> Sequence[Mapping[str, Any]]:
    """Return the entries of the batches that may have been in use at the end, oldest first."""
    if until is not None:
        return [one for one in entries if one["t_wall"] <= until][-1:]
    if not entries:
        return ()
    last = entries[-1]
    if last.get("failed") is True:
        return (last,)
    mine = [one for one in entries if one["loader"] == last["loader"]]
    epoch = [one for one in mine if one["epoch"] == last["epoch"]]
    done = last["passes"] - last["begun"]
    # An evaluation makes no backward passes, and a loop may make several of one batch: then the last batch is the one.
    if last["loader"] not in rank.feeding or done > last["index"]:
        return (last,)
    if rank.passes is not None:
        return [one for one in epoch if one["index"] == rank.passes - last["begun"]] or (last,)
    # Before an epoch's first backward pass, all loops look as if they drew ahead.
    used = (one for one in mine if one["passes"] > one["begun"])
    ahead = min((one["index"] - one["passes"] + one["begun"] for one in used), default=0)
    return [one for one in epoch if done <= one["index"] <= last["index"] - ahead] or (last,)


def _is_entry(record: Mapping[str, Any]) -> bool:
    numbers = ("n", "loader", "epoch", "index", "step", "passes", "begun")
    return all(type(record.get(name)) is int for name in numbers) and isinstance(record.get("t_wall"), float)


def _elements(entry: Mapping[str, Any]) -> int:
    """Return the number of elements in the largest tensor of a batch."""
    return max((prod(shape) for shape in entry.get("shapes", ())), default=0)


def _batch(entry: Mapping[str, Any], rank: int, known: _Rank, usual: float) -> UsedBatch:
    indices, size = entry.get("indices"), entry.get("size")
    return UsedBatch(
        rank=rank,
        at=known.places.get(entry["loader"], ""),
        epoch=entry["epoch"],
        index=entry["index"],
        step=entry["step"],
        shapes=tuple(tuple(shape) for shape in entry.get("shapes", ())),
        dtypes=tuple(map(str, entry.get("dtypes", ()))),
        size=size if type(size) is int else None,
        indices=tuple(indices) if isinstance(indices, list) else None,
        times_usual=round(_elements(entry) / usual, 2) if usual else None,
    )


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        with open_regular(path) as file:
            return [record for line in file if (record := measured_record(line.lstrip(b"\0"))) is not None]
    except OSError:
        return []
