"""Many logs as one: merged by attempt and time, equal lines of several ranks folded, from any place in either direction.

A place is one offset a log: all that lies before it stands above. Moving on takes whole lines off the logs'
heads, so each log's own order is never changed, whatever is known of time. Nothing is held but what is in sight.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from supervisor.text.tracebacks import MARK, At, block_at, summary
from supervisor.views.logs.file import TextLine
from supervisor.views.logs.sources import Tone, split_rank, tone_of
from supervisor.views.logs.stream import Stream

# How far ahead of the others a log may be and its lines still be folded with theirs.
FOLD_AHEAD_LINES = 24
# How many unfolded lines are looked through at most to fill a page that folds them.
MOST_BACK_LINES = 20_000

Place = tuple[int, ...]


class Row(NamedTuple):
    """One shown line, folded from `parts`: (log, its line). `place` is before all of them.

    With the tone `FOLDED` the parts are the lines of one log, one after the other, and `text` sums them up.
    """

    place: Place
    who: tuple[str, ...]
    text: str
    tone: Tone
    parts: tuple[tuple[int, TextLine], ...]


class _Unit(NamedTuple):
    """Lines of one log that stay together: one line, or a traceback. Units with equal `texts` fold."""

    who: str
    lines: tuple[TextLine, ...]
    texts: tuple[str, ...]
    report: str = ""  # torchrun's own traceback in one line


class _Head:
    """The units of one log that come next, some of them looked at ahead.

    Args:
        stream: the log.
        place: where to begin.
        stop: where to end; None: at the log's end.
    """

    def __init__(self, stream: Stream, place: int, stop: int | None) -> None:
        self._stream = stream
        self._lines = stream.forward(place)
        self._stop = stop
        self.node = stream.ref.node
        self.attempt = stream.ref.attempt
        self._read: deque[tuple[TextLine, str, str]] = deque()  # what was read to see where a traceback ends
        # A thinned log shows lines, not tracebacks.
        self._has_blocks = stream.is_whole
        self.ahead: deque[_Unit] = deque()
        self.keys: Counter[tuple[str, ...]] = Counter()
        if stop is None or place < stop:  # of most logs of many, a page shows no line
            self.fill()

    def fill(self) -> None:
        """Look as far ahead as lines may be folded."""
        while len(self.ahead) < FOLD_AHEAD_LINES:
            unit = self._unit()
            if unit is None:
                return
            self.ahead.append(unit)
            self.keys[unit.texts] += 1

    def _unit(self) -> _Unit | None:
        read = self._read
        if not self._reach(0) or self._is_beyond():
            return None
        _, who, text = read[0]
        block = block_at(self._written_by(who), self._is_hooks) if MARK in text and self._has_blocks else None
        count = block.lines if block is not None else 1
        taken: list[tuple[TextLine, str, str]] = []
        while len(taken) < count and self._reach(0) and not self._is_beyond():
            taken.append(read.popleft())
        lines, _, texts = zip(*taken, strict=True)
        is_report = block is not None and block.is_report and len(taken) == count
        return _Unit(who, lines, texts, summary(texts, block) if block is not None and is_report else "")

    def _is_beyond(self) -> bool:
        return self._stop is not None and self._read[0][0].offset >= self._stop

    def _written_by(self, who: str) -> At:
        def at(n: int) -> str | None:
            return self._read[n][2] if self._reach(n) and self._read[n][1] == who else None

        return at

    def _is_hooks(self, n: int) -> bool:
        return self._reach(n) and self._stream.is_hooks(self._read[n][0].text)

    def _reach(self, n: int) -> bool:
        """Read on until there are more than `n` lines, beyond the stop too; False: there are not."""
        while len(self._read) <= n:
            line = next(self._lines, None)
            if line is None:
                self._lines = iter(())
                return False
            self._read.append((line, *split_rank(line.text, self._stream.ref.who)))
        return True

    def take(self) -> _Unit:
        """The next unit."""
        taken = self.ahead.popleft()
        self.keys[taken.texts] -= 1
        if not self.keys[taken.texts]:
            del self.keys[taken.texts]
        self.fill()
        return taken

    def depth_of(self, texts: tuple[str, ...]) -> int | None:
        """How many units come before the one with these texts; None: it is not near."""
        if texts not in self.keys:
            return None
        return next(i for i, unit in enumerate(self.ahead) if unit.texts == texts)


def rows_from(
    streams: Sequence[Stream],
    place: Place,
    stop: Place | None = None,
    most: int | None = None,
    *,
    folds: bool = False,
) -> Iterator[Row]:
    """The rows from `place` on, up to `stop`, at most `most`; with `folds` torchrun's own traceback is one of them."""
    heads = [
        _Head(stream, at, stop[i] if stop else None)
        for i, (stream, at) in enumerate(zip(streams, place, strict=True))
    ]
    now = list(place)
    keys = [stream.order for stream in streams]
    queue = [(keys[i](head.ahead[0].lines[0]), i) for i, head in enumerate(heads) if head.ahead]
    heapq.heapify(queue)
    given = 0

    def push(i: int) -> None:
        if heads[i].ahead:
            heapq.heappush(queue, (keys[i](heads[i].ahead[0].lines[0]), i))

    def rows(logs: Sequence[int]) -> Iterator[Row]:
        """The next unit of these logs, which is the same in all."""
        units = [(i, heads[i].take()) for i in logs]
        first = units[0][1]
        whose = tuple(dict.fromkeys(unit.who for _, unit in units))
        if first.report and folds:
            before = tuple(now)
            now[logs[0]] = first.lines[-1].end
            parts = tuple((logs[0], line) for line in first.lines)
            yield Row(before, whose, first.report, Tone.FOLDED, parts)
            return
        for n, text in enumerate(first.texts):
            before = tuple(now)
            parts = tuple((i, unit.lines[n]) for i, unit in units)
            for i, line in parts:
                now[i] = line.end
            yield Row(before, whose, text, tone_of(text), parts)

    while queue and (most is None or given < most):
        key, first = heapq.heappop(queue)
        if not heads[first].ahead:
            continue
        unit = heads[first].ahead[0]
        if key != keys[first](unit.lines[0]):
            push(first)  # it was folded ahead of its turn
            continue
        may_fold = len(heads) > 1 and not unit.report and (len(unit.lines) > 1 or unit.texts[0].strip())
        others = _alike(heads, first, unit.texts) if may_fold else []
        groups = [[other] for other, depth in others for _ in range(depth)]
        for group in (*groups, sorted((first, *(other for other, _ in others)))):
            for row in rows(group):
                yield row
                given += 1
        push(first)


def _alike(heads: Sequence[_Head], first: int, texts: tuple[str, ...]) -> list[tuple[int, int]]:
    """The logs that continue with the same unit, and how many units of theirs come before; never units that others await."""
    found: list[tuple[int, int]] = []
    whose = {(heads[first].node, heads[first].ahead[0].who)}
    for i, head in enumerate(heads):
        if not head.ahead:
            continue
        is_other = i == first or head.attempt != heads[first].attempt
        depth = None if is_other else head.depth_of(texts)
        if depth is None or (head.node, head.ahead[depth].who) in whose:
            continue
        before = [unit.texts for unit in itertools.islice(head.ahead, depth)]
        if not any(other in heads[first].keys for other in before):
            found.append((i, depth))
            whose.add((head.node, head.ahead[depth].who))
    return found


def place_before(streams: Sequence[Stream], place: Place, most: int) -> Place:
    """The place that many unfolded lines before another, by time."""
    now = list(place)
    sources = [stream.backward(at) for stream, at in zip(streams, place, strict=True)]
    keys = [stream.order for stream in streams]
    queue: list[tuple[int, float, int, int]] = []

    def push(i: int) -> None:
        line = next(sources[i], None)
        if line is not None:
            attempt, t = keys[i](line)
            heapq.heappush(queue, (-attempt, -t, -i, line.offset))

    for i in range(len(sources)):
        push(i)
    for _ in range(most):
        if not queue:
            break
        *_, minus, offset = heapq.heappop(queue)
        now[-minus] = offset
        push(-minus)
    return tuple(now)


def rows_before(streams: Sequence[Stream], place: Place, most: int, *, folds: bool = False) -> list[Row]:
    """The last `most` rows before `place`."""
    filled = sum(offset > 0 for offset in place)
    lines = most if filled == 1 else most * 4
    while True:
        start = place_before(streams, place, lines)
        # A traceback that is begun in its midst would neither fold nor be known as one.
        start = tuple(
            trace.head if at < end and (trace := stream.trace_around(at)) is not None else at
            for stream, at, end in zip(streams, start, place, strict=True)
        )
        rows = list(rows_from(streams, start, stop=place, folds=folds))
        if len(rows) >= most or lines >= MOST_BACK_LINES or not any(start):
            return rows[-most:] if most else []
        lines = min(max(lines * 4, most * filled), MOST_BACK_LINES)
