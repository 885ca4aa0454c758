"""The lines of a recorded run with the time by which each was there, so that a replay shows no line too early.

No file records when a line was written. Its time is known from its own time stamp, from the sample taken of it (matched by
step or loss), from the event that quotes it, or from when its file was last written. A line without any of these is shown
with the next line that has one. Times are never interpolated: that would make them up.

The log engine reads the files themselves; a replay adds how long each file was at a moment, and the run's events as
further logs that are in no file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from supervisor.run import series as se
from supervisor.run.events import Event, EvidenceSeen
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.regular import open_regular
from supervisor.run.series import Sample
from supervisor.run.state import RunState
from supervisor.sources.metrics import MetricReader
from supervisor.text.lines import Line, LineSplitter
from supervisor.text.stamps import is_rising, shift_of, stamp_of
from supervisor.views.format import time_of_day
from supervisor.views.logs.commands import RecordedLogs
from supervisor.views.logs.sources import JOURNAL, LogRef, logs_of, split_rank
from supervisor.views.wording.translate import Tr, english

# Bytes that are played of all logs together, the newest part of each: some 70,000 lines.
PLAYED_BYTES = 4 << 20
FACTS = "stoker"


class RecordedLine(NamedTuple):
    """A line of a log: from `offset` up to `end` in bytes."""

    attempt: int
    who: str
    text: str
    path: str
    offset: int
    end: int


class TimedLine(NamedTuple):
    """A line, and by when it was there, wall seconds."""

    t: float
    line: RecordedLine


class LogTimes:
    """How much of each log was there at a moment.

    Args:
        lines: of all logs, in the order of time.
        notes: the logs that are in no file, each with the time of its last line.
    """

    def __init__(self, lines: Sequence[TimedLine], notes: Sequence[tuple[LogRef, bytes, float]]) -> None:
        self._notes = tuple(notes)
        self._known: dict[str, tuple[list[int], list[float]]] = {}
        for t, line in lines:
            ends, times = self._known.setdefault(line.path, ([], []))
            times.append(t)
            ends.append(max(line.end, ends[-1] if ends else 0))

    def at(self, t: float) -> RecordedLogs:
        """What was there."""
        found = {path: (bisect_right(times, t), ends) for path, (ends, times) in self._known.items()}
        return RecordedLogs(
            t, {path: ends[n - 1] for path, (n, ends) in found.items() if n}, self._known, self._notes
        )


class SampleTimes:
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
        """When the first sample of `who` with this value was taken, at `since` or later."""
        if value is None:
            return None
        for key in (who, se.JOB_KEY):
            found = self._times.get((attempt, key, name, value), ())
            if (t := next((t for t in found if t >= since), None)) is not None:
                return t
        return None


class _Part(NamedTuple):
    """The played lines of one log. `known`: the times that are known, by index."""

    ref: LogRef
    lines: list[RecordedLine]
    known: Mapping[int, float]


def recorded_lines(
    run: RunPaths,
    node: NodePaths,
    state: RunState,
    samples: Sequence[tuple[float, str, Sample]],
    events: Sequence[Event],
    end_t: float,
    tr: Tr = english,
) -> tuple[tuple[TimedLine, ...], LogTimes]:
    """The lines of all logs and the entries of the timeline, in order of time; and how long each log was when.

    Args:
        run: whose facts they are.
        node: where its logs lie.
        state: as it stood in the end.
        samples: as (t, stream, sample), oldest first.
        events: all of them, oldest first.
        end_t: when the recording ends, wall seconds.
        tr: the person's language.
    """
    refs = [ref for ref in logs_of(state, node, state.attempts) if _size(ref.path)]
    budget = _fair_share([_size(ref.path) for ref in refs], PLAYED_BYTES)
    sample_times = SampleTimes(samples)
    quoted = _quoted(node, events)
    found: list[TimedLine] = []
    remarks: list[tuple[float, int, str]] = []
    for number, attempt in enumerate(state.attempts):
        begin = attempt.started_t or attempt.planned_t
        later = state.attempts[number + 1].planned_t if number + 1 < len(state.attempts) else end_t
        end = min(attempt.ended_t or later, later)
        mine = [ref for ref in refs if ref.attempt == attempt.number]
        parts = [_read(ref, budget, sample_times, quoted, (begin, max(end, begin))) for ref in mine]
        parts = [part for part in parts if part.lines]
        found += _timed(parts, begin, max(end, begin))
        for part in parts:
            if not part.known:
                name = f"{part.ref.who} {part.ref.stream}".strip()
                t = _unknown_t(parts, begin, max(end, begin))
                remarks.append(
                    (t, attempt.number, tr(f"{name}: nothing tells when these lines were written"))
                )
    notes: list[tuple[LogRef, bytes, float]] = []
    facts = [*remarks, *_facts(state, tr)]
    for attempt in state.attempts:
        mine_then = sorted((t, text) for t, number, text in facts if number == attempt.number)
        if mine_then:
            path = run.node().journal.with_suffix(f".{attempt.number}")
            ref = LogRef(attempt.number, FACTS, JOURNAL, path)
            found += _as_log(ref, mine_then)
            data = "".join(f"{time_of_day(t)}  {text}\n" for t, text in mine_then).encode()
            notes.append((ref, data, mine_then[-1][0]))
    found.sort(key=lambda timed: timed.t)
    return tuple(found), LogTimes(found, notes)


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
    sample_times: SampleTimes,
    quoted: Mapping[tuple[str, int], float],
    lived: tuple[float, float],
) -> _Part:
    """The newest `budget` bytes of a log, with the times that are known."""
    try:
        with open_regular(ref.path) as file:
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
        who, text = split_rank(each.text, ref.who)
        lines.append(RecordedLine(ref.attempt, who, text, str(ref.path), each.offset, each.offset))
    ends = [*(line.offset for line in lines[1:]), size]
    lines = [line._replace(end=end) for line, end in zip(lines, ends, strict=False)]
    known = _stamped(lines, written_t) or _known(ref, raw, lines, sample_times, quoted, lived[0])
    known = {at: t for at, t in known.items() if lived[0] <= t <= lived[1]}
    # A copied file was written at another time than its lines.
    if lines and lived[0] <= written_t <= lived[1]:
        known.setdefault(len(lines) - 1, written_t)
    return _Part(ref, lines, known)


def _blocks(fd: int, end: int) -> Iterator[bytes]:
    for at in range(0, end, 1 << 20):
        yield os.pread(fd, min(1 << 20, end - at), at)


def _stamped(lines: Sequence[RecordedLine], written_t: float) -> dict[int, float]:
    """The lines' own clocks, where a third of them bear one and they do not go back; empty otherwise."""
    stamps = {at: t for at, line in enumerate(lines) if (t := stamp_of(line.text, written_t)) is not None}
    if len(stamps) < 2 or 3 * len(stamps) < len(lines) or not is_rising(list(stamps.values())):
        return {}
    shift_s = shift_of(next(reversed(stamps.values())), written_t)
    return {at: t + shift_s for at, t in stamps.items()}


def _known(
    ref: LogRef,
    raw: Sequence[Line],
    lines: Sequence[RecordedLine],
    sample_times: SampleTimes,
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
            t = sample_times.of(ref.attempt, who, "step", sample.values.get("step"), since)
            if t is None:
                t = sample_times.of(ref.attempt, who, "loss", sample.loss, since)
        if t is not None and t >= since:
            known[at] = since = t
    return known


def _timed(parts: Sequence[_Part], begin: float, end: float) -> Iterator[TimedLine]:
    """The lines of an attempt."""
    for part in parts:
        t = end if part.known else _unknown_t(parts, begin, end)
        times = []
        for at in range(len(part.lines) - 1, -1, -1):
            t = min(part.known.get(at, t), t)
            times.append(t)
        yield from map(TimedLine, reversed(times), part.lines)


def _unknown_t(parts: Sequence[_Part], begin: float, end: float) -> float:
    """When to show a log whose times are unknown: at the end, where other logs cover the time until then; else from the start."""
    return end if any(part.known for part in parts) else begin


def _facts(state: RunState, tr: Tr) -> Iterator[tuple[float, int, str]]:
    """The moments with their times and attempts; one of no attempt belongs to the one that was on."""
    number = state.attempts[0].number if state.attempts else 0
    for moment in state.timeline:
        number = moment.attempt or number
        yield moment.t, number, tr.moment(moment)


def _as_log(ref: LogRef, facts: Sequence[tuple[float, str]]) -> Iterator[TimedLine]:
    end = 0
    for t, text in facts:
        start, end = end, end + len(f"{time_of_day(t)}  {text}\n".encode())
        yield TimedLine(t, RecordedLine(ref.attempt, ref.who, text, str(ref.path), start, end))


def _fair_share(sizes: Sequence[int], total: int) -> int:
    """The greatest cap with which the sizes, each cut to it, are at most `total` together."""
    left = total
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return total
