"""Report for ``stoker runs --scaling``: nodes, ranks, speed, memory and efficiency of several runs, as text or CSV."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.cli.common import complain, say_table
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, METRICS, RANKS, SeriesReader, highest
from supervisor.run.state import RunState
from supervisor.text.decode import printable

GIB: Final = 2**30
SPEEDS: Final = (("samples_per_sec", "samples/s"), ("tokens_per_sec", "tokens/s"))
LEAST_READINGS: Final = 3
"""Minimum number of readings. With fewer, the first one, which includes startup, distorts the result."""
HEAD: Final = ("run", "nodes", "ranks", "speed", "per_rank", "speedup", "efficiency", "memory_gib")


@dataclass(frozen=True, slots=True)
class Scaled:
    """A run's speeds, keyed by unit and taken from its attempt with the most readings, plus peak GPU or rank memory."""

    run_id: str
    nodes: int
    ranks: int
    speeds: dict[str, float]
    memory_bytes: float | None


def print_scaling(runs: Sequence[RunPaths], *, as_csv: bool) -> int:
    """Print the table, relative to the run with the fewest ranks. Exit 2 if the runs logged no speed in common."""
    scaled = [read_scaled(run) for run in runs]
    silent = [one.run_id for one in scaled if not one.speeds]
    if silent:
        return complain(
            "runs",
            f"{', '.join(silent)}: it has logged no speed (samples/s or tokens/s)",
        )
    unit = next((word for _, word in SPEEDS if all(word in one.speeds for one in scaled)), None)
    if unit is None:
        had = "; ".join(f"{one.run_id}: {', '.join(one.speeds)}" for one in scaled)
        return complain("runs", f"there is no speed that all of them logged: {had}")
    rows = list(table(scaled, unit))
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([HEAD, *rows])
        return 0
    head = ("run", "nodes", "ranks", unit, "per rank", "speedup", "efficiency", "memory")
    say_table([head, *map(_words, rows)], right=range(1, len(head)))
    return 0


def table(scaled: Sequence[Scaled], unit: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows in order of increasing rank count. Unknown values are empty."""
    ordered = sorted(scaled, key=lambda one: (one.ranks, one.nodes))
    first = ordered[0]
    for one in ordered:
        speed = one.speeds[unit]
        speedup = speed / first.speeds[unit]
        memory = f"{one.memory_bytes / GIB:.2f}" if one.memory_bytes is not None else ""
        efficiency = speedup * first.ranks / one.ranks
        yield (
            printable(one.run_id),
            str(one.nodes),
            str(one.ranks),
            f"{speed:.6g}",
            f"{speed / one.ranks:.6g}",
            f"{speedup:.3f}",
            f"{efficiency:.3f}",
            memory,
        )


def _words(row: tuple[str, ...]) -> tuple[str, ...]:
    *start, speedup, efficiency, memory = row
    return (*start, f"{float(speedup):.2f} ×", f"{float(efficiency):.0%}", f"{memory} GiB" if memory else "–")


def read_scaled(run: RunPaths) -> Scaled:
    """Read a run's speeds and memory from its folder."""
    states = [read_state(run.node(node).journal) for node in run.nodes()] or [RunState()]
    state = states[0]  # node 0's state represents the run
    by_attempt: dict[int, dict[str, list[float]]] = {}
    reader = SeriesReader(run.node().series, METRICS)
    while samples := reader.read():
        for sample in samples:
            for name, word in SPEEDS:
                if (value := sample.v.get(name)) is not None:
                    by_attempt.setdefault(sample.a, {}).setdefault(word, []).append(value)
    counts = {attempt: max(map(len, found.values())) for attempt, found in by_attempt.items()}
    if not counts:
        return Scaled(run.run_id, len(run.nodes()) or 1, state.world_size or 1, {}, None)
    best = max(counts, key=lambda attempt: (counts[attempt], attempt))
    speeds = {
        word: statistics.median(values)
        for word, values in by_attempt[best].items()
        if len(values) >= LEAST_READINGS
    }
    memory = [
        values["memory_used_bytes"]
        for node in run.nodes()
        for stream in (GPU, RANKS)
        for values in highest(run.node(node).series, stream, best).values()
        if "memory_used_bytes" in values
    ]
    views = [found for each in states if (found := each.find(best)) is not None]
    ranks = sum(len(each.ranks) for each in views) or state.world_size or 1
    return Scaled(run.run_id, len(views) or 1, ranks, speeds, max(memory, default=None))
