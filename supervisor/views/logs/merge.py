"""Presents many logs as one: merged by time, with identical lines from several ranks folded.

A position (`Place`) is one offset per log; rows can be read from any position in either direction. Moving down
always takes some log's next line, so each log keeps its order even without times. Only visible lines are kept.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from supervisor.views.logs.file import TextLine
from supervisor.views.logs.sources import Tone, split_rank, tone_of
from supervisor.views.logs.stream import Stream

# How far a log may be ahead of the others so that its lines still fold with theirs.
FOLD_AHEAD_LINES = 24
# A traceback begins with this and ends with the first line without indentation. A longer traceback may be split.
TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
MOST_UNIT_LINES = 200
# The greatest number of unfolded lines to read to fill a page that folds them.
MOST_BACK_LINES = 20_000

Place = tuple[int, ...]


class Row(NamedTuple):
    """A visible row, folded from `parts`, which are (log, line) pairs. `place` is the position just before them."""

    place: Place
    who: tuple[str, ...]
    text: str
    tone: Tone
    parts: tuple[tuple[int, TextLine], ...]


class _Unit(NamedTuple):
    """Consecutive log lines that stay together: a line and the indented lines below it. Units with equal `texts` are folded."""

    who: str
    lines: tuple[TextLine, ...]
    texts: tuple[str, ...]
    t: float


class _Head:
    """The upcoming units of a log, some of which have been read ahead.

    Args:
        stream: the log.
        place: where to start.
        stop: where to stop, or None to read to the end of the log.
    """

    def __init__(self, stream: Stream, place: int, stop: int | None) -> None:
        lines = stream.forward(place)
        if stop is not None:
            lines = itertools.takewhile(lambda line: line.offset < stop, lines)
        self._stream = stream
        self._lines = ((line, *split_rank(line.text, stream.ref.who)) for line in lines)
        self._next: tuple[TextLine, str, str] | None = None
        self.ahead: deque[_Unit] = deque()
        if stop is None or place < stop:  # with many logs, a page shows no line of most of them
            self._next = next(self._lines, None)
            self.fill()

    def fill(self) -> None:
        """Read ahead until `FOLD_AHEAD_LINES` units are buffered or the stream ends."""
        while len(self.ahead) < FOLD_AHEAD_LINES and self._next is not None:
            self.ahead.append(self._unit(self._next))

    def _unit(self, first: tuple[TextLine, str, str]) -> _Unit:
        taken = [first]
        # A page may start in the middle of a traceback.
        is_inside = first[2][:1] in {" ", "\t"} or TRACEBACK.search(first[2]) is not None
        while (line := next(self._lines, None)) is not None and len(taken) < MOST_UNIT_LINES:
            is_indented = line[2][:1] in {" ", "\t"}
            if line[1] != first[1] or not (is_indented or is_inside):
                break
            taken.append(line)
            is_inside = is_inside and is_indented
        self._next = line
        lines, _, texts = zip(*taken, strict=True)
        return _Unit(first[1], lines, texts, self._stream.order(lines[0]))

    def take(self) -> _Unit:
        """Remove and return the next unit."""
        taken = self.ahead.popleft()
        self.fill()
        return taken

    def depth_of(self, texts: tuple[str, ...]) -> int | None:
        """Return how many units come before the unit with these texts, or None if no such unit is nearby."""
        return next((depth for depth, unit in enumerate(self.ahead) if unit.texts == texts), None)

    def writer(self, depth: int) -> tuple[int | None, str]:
        """Return the node and rank that wrote the unit at `depth`."""
        return self._stream.ref.node, self.ahead[depth].who


def rows_from(streams: Sequence[Stream], place: Place, stop: Place | None = None) -> Iterator[Row]:
    """Yield the rows from `place` up to `stop`."""
    now, stops = list(place), stop or (None,) * len(place)
    heads = [_Head(stream, at, end) for stream, at, end in zip(streams, place, stops, strict=True)]

    def rows(logs: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of the next unit, which is identical in all of these logs."""
        units = [(i, heads[i].take()) for i in logs]
        first = units[0][1]
        whose = tuple(dict.fromkeys(unit.who for _, unit in units))
        for n, text in enumerate(first.texts):
            before = tuple(now)
            parts = tuple((i, unit.lines[n]) for i, unit in units)
            for i, line in parts:
                now[i] = line.end
            yield Row(before, whose, text, tone_of(text), parts)

    while waiting := [i for i, head in enumerate(heads) if head.ahead]:
        first = min(waiting, key=lambda i: heads[i].ahead[0].t)
        unit = heads[first].ahead[0]
        may_fold = len(heads) > 1 and (len(unit.lines) > 1 or unit.texts[0].strip())
        others = _alike(heads, first, unit.texts) if may_fold else []
        for other, depth in others:
            for _ in range(depth):
                yield from rows([other])
        yield from rows(sorted((first, *(other for other, _ in others))))


def _alike(heads: Sequence[_Head], first: int, texts: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the other logs in which the same unit is coming up, each with the number of units that precede it there."""
    found: list[tuple[int, int]] = []
    whose = {heads[first].writer(0)}
    for i, head in enumerate(heads):
        depth = head.depth_of(texts) if i != first else None
        if depth is None or head.writer(depth) in whose:
            continue
        before = itertools.islice(head.ahead, depth)
        if all(heads[first].depth_of(unit.texts) is None for unit in before):
            found.append((i, depth))
            whose.add(head.writer(depth))
    return found


def place_before(streams: Sequence[Stream], place: Place, most: int) -> Place:
    """Return the position `most` unfolded lines before `place`, in time order."""
    now = list(place)
    upward = (_upward(i, stream, at) for i, (stream, at) in enumerate(zip(streams, place, strict=True)))
    for _, minus, offset in itertools.islice(heapq.merge(*upward), most):
        now[-minus] = offset
    return tuple(now)


def _upward(index: int, stream: Stream, place: int) -> Iterator[tuple[float, int, int]]:
    """Yield a log's lines before a position, nearest first. Their keys sort the latest line across all logs first."""
    for line in stream.backward(place):
        yield -stream.order(line), -index, line.offset


def rows_before(streams: Sequence[Stream], place: Place, most: int) -> list[Row]:
    """Return the last `most` rows before `place`."""
    filled = sum(offset > 0 for offset in place)
    lines = most if filled == 1 else most * 4
    while True:
        start = place_before(streams, place, lines)
        rows = list(rows_from(streams, start, stop=place))
        if len(rows) >= most or lines >= MOST_BACK_LINES or not any(start):
            return rows[-most:] if most else []
        lines = min(max(lines * 4, most * filled), MOST_BACK_LINES)
