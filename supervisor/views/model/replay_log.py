"""The lines of a recorded run with the time by which each was there, so that a replay shows no line too early.

Nobody writes down when a line came. What tells: the line's own clock; the sample that was taken of it (its step, or its
loss), which bears a time; the fact that quotes it; and when its file was last written. A line that nothing tells of was
there by the time of the next one that something does. Lines are never spread evenly over a time: that would be made up.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from supervisor.run import series as se
from supervisor.run.events import Event, EvidenceSeen
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.series import Sample
from supervisor.run.state import RunState
from supervisor.sources.metrics import MetricReader
from supervisor.text.lines import Line, LineSplitter
from supervisor.text.stamps import is_rising, shift_of, stamp_of
from supervisor.views.format import time_of_day
from supervisor.views.logs.newest import LogLine, LogRef, Tone, fair_share, logs_of, speaker_of, tone_of

# Of all logs together so much is played, the newest part of each; some 70,000 lines.
PLAYED_BYTES = 4 << 20
STORYTELLER = "stoker"
TONES = {"bad": Tone.BAD, "warn": Tone.WARN}


class TimedLine(NamedTuple):
    """A line, and by when it was there, wall seconds."""

    t: float
    line: LogLine


class Heard:
    """When samples were taken of an attempt's lines, by step and by loss; each is looked up in the order of time."""

    def __init__(self, samples: Sequence[tuple[float, str, Sample]]) -> None:
        self._times: dict[tuple[int, str, str, float], list[float]] = {}
        for t, stream, sample in samples:
            if stream not in {se.METRICS, se.RANKS}:
                continue
            for name in ("step", "loss"):
                value = sample.v.get(name)
                if value is not None:
                    self._times.setdefault((sample.a, sample.k, name, value), []).append(t)

    def of(self, attempt: int, who: str, name: str, value: float | None, since: float) -> float | None:
        """When `who` was first heard to say so, at `since` or later."""
        if value is None:
            return None
        for key in (who, se.JOB_KEY):
            found = self._times.get((attempt, key, name, value), ())
            if (t := next((t for t in found if t >= since), None)) is not None:
                return t
        return None


class _Part(NamedTuple):
    """The played lines of one log. `known`: index to the time that something tells."""

    ref: LogRef
    lines: list[LogLine]
    known: Mapping[int, float]


def told_lines(
    run: RunPaths,
    node: NodePaths,
    state: RunState,
    samples: Sequence[tuple[float, str, Sample]],
    events: Sequence[Event],
    end_t: float,
) -> tuple[TimedLine, ...]:
    """The run's facts and the lines of all its logs, in the order of time.

    Args:
        run: whose facts they are.
        node: where its logs lie.
        state: as it stood in the end.
        samples: as (t, stream, sample), oldest first.
        events: all facts, oldest first.
        end_t: when the recording ends, wall seconds.
    """
    refs = [ref for ref in logs_of(state, node, state.attempts) if _size(ref.path)]
    budget = fair_share([_size(ref.path) for ref in refs], PLAYED_BYTES)
    heard = Heard(samples)
    quoted = _quoted(node, events)
    found: list[TimedLine] = []
    for number, attempt in enumerate(state.attempts):
        begin = attempt.started_t or attempt.planned_t
        later = state.attempts[number + 1].planned_t if number + 1 < len(state.attempts) else end_t
        end = min(attempt.ended_t or later, later)
        mine = [ref for ref in refs if ref.attempt == attempt.number]
        parts = [_read(ref, budget, heard, quoted, (begin, max(end, begin))) for ref in mine]
        found += _timed([part for part in parts if part.lines], begin, max(end, begin))
    found += _story(run, state)
    found.sort(key=lambda timed: timed.t)
    return tuple(found)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _quoted(node: NodePaths, events: Sequence[Event]) -> dict[tuple[str, int], float]:
    """Path and line number (from 1) to when a fact quoted it."""
    return {
        (str(node.attempt(event.attempt).root / event.path), event.line): event.t
        for event in reversed(events)
        if isinstance(event, EvidenceSeen) and event.path is not None and event.line is not None
    }


def _read(
    ref: LogRef,
    budget: int,
    heard: Heard,
    quoted: Mapping[tuple[str, int], float],
    lived: tuple[float, float],
) -> _Part:
    """The newest `budget` bytes of a log, with the times that are known."""
    try:
        with ref.path.open("rb") as file:
            size, written_t = os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_mtime
            start = max(size - budget, 0)
            before = sum(block.count(b"\n") for block in _blocks(file.fileno(), start))
            data = os.pread(file.fileno(), size - start, start)
    except OSError:
        return _Part(ref, [], {})
    splitter = LineSplitter(offset=start, number=before + 1)
    raw = splitter.feed(data)
    if (last := splitter.finish()) is not None:
        raw.append(last)
    raw = raw[1 if start else 0 :]
    lines = []
    for each in raw:
        who, text = speaker_of(each.text, ref.who)
        lines.append(LogLine(ref.attempt, who, ref.stream, text, tone_of(text), str(ref.path), each.offset))
    known = _stamped(lines, written_t) or _known(ref, raw, lines, heard, quoted, lived[0])
    known = {at: t for at, t in known.items() if lived[0] <= t <= lived[1]}
    # A copied file was written at another time than its lines.
    if lines and lived[0] <= written_t <= lived[1]:
        known.setdefault(len(lines) - 1, written_t)
    if start and lines:
        said = f"… {start / 2**20:.1f} MiB before this are not played: L opens the whole log"
        lines[0:0] = [LogLine(ref.attempt, ref.who, ref.stream, said, Tone.NOTE, str(ref.path), 0)]
        known = {at + 1: t for at, t in known.items()}
    return _Part(ref, lines, known)


def _blocks(fd: int, end: int) -> Iterator[bytes]:
    for at in range(0, end, 1 << 20):
        yield os.pread(fd, min(1 << 20, end - at), at)


def _stamped(lines: Sequence[LogLine], written_t: float) -> dict[int, float]:
    """The lines' own clocks, where a third of them bear one and they do not go back; empty otherwise."""
    stamps = {at: t for at, line in enumerate(lines) if (t := stamp_of(line.text, written_t)) is not None}
    if len(stamps) < 2 or 3 * len(stamps) < len(lines) or not is_rising(list(stamps.values())):
        return {}
    shift_s = shift_of(next(reversed(stamps.values())), written_t)
    return {at: t + shift_s for at, t in stamps.items()}


def _known(
    ref: LogRef,
    raw: Sequence[Line],
    lines: Sequence[LogLine],
    heard: Heard,
    quoted: Mapping[tuple[str, int], float],
    begin: float,
) -> dict[int, float]:
    """Times of the lines that a sample was taken of, or that a fact quotes."""
    known: dict[int, float] = {}
    since = begin
    samples = MetricReader().read([line.raw for line in raw])
    for at, (each, line, sample) in enumerate(zip(raw, lines, samples, strict=True)):
        t = quoted.get((str(ref.path), each.number))
        if t is None and sample is not None:
            who = str(sample.rank) if sample.rank is not None else line.who
            t = heard.of(ref.attempt, who, "step", sample.values.get("step"), since)
            if t is None:
                t = heard.of(ref.attempt, who, "loss", sample.loss, since)
        if t is not None and t >= since:
            known[at] = since = t
    return known


def _timed(parts: Sequence[_Part], begin: float, end: float) -> Iterator[TimedLine]:
    """The lines of an attempt; where nothing tells of a whole log, that is said."""
    knows_any = any(part.known for part in parts)
    for part in parts:
        if not part.known:
            # All at the end, where others tell a story until then; else from the start, or there would be none.
            t = end if knows_any else begin
            name = f"{part.ref.who} {part.ref.stream}".strip()
            said = f"{name}: nothing tells when these lines were written"
            note = LogLine(
                part.ref.attempt, part.ref.who, part.ref.stream, said, Tone.NOTE, str(part.ref.path), 0
            )
            yield from (TimedLine(t, line) for line in itertools.chain([note], part.lines))
            continue
        t, times = end, []
        for at in range(len(part.lines) - 1, -1, -1):
            t = min(part.known.get(at, t), t)
            times.append(t)
        yield from map(TimedLine, reversed(times), part.lines)


def _story(run: RunPaths, state: RunState) -> Iterator[TimedLine]:
    """The facts, as lines."""
    path = str(run.node().journal)
    for number, mark in enumerate(state.timeline):
        text = f"{time_of_day(mark.t)}  {mark.text}"
        tone = TONES.get(mark.tone, Tone.NOTE)
        yield TimedLine(mark.t, LogLine(mark.attempt or 0, STORYTELLER, "journal", text, tone, path, number))
