"""Many logs as one: merged by time, equal lines of several ranks folded, from any place in either direction.

A place is one offset a log: all that lies before it has been said. Moving on takes whole lines off the logs'
heads, so each log's own order is never changed, whatever is known of time. Nothing is held but what is in sight.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from supervisor.text.decode import clean
from supervisor.views.logblocks import (
    MARK,
    MOST_REPORT_LINES,
    At,
    block_at,
    is_head,
    may_be_inside,
    summary,
    texts_from,
)
from supervisor.views.logclock import LogClock
from supervisor.views.logfile import LogFile, TextLine
from supervisor.views.logindex import CHUNK_BYTES, Counts
from supervisor.views.logmatch import Query
from supervisor.views.logs import LogRef, Tone, speaker_of, tone_of

# How far ahead of the others a log may be and its lines still be folded with theirs.
FOLD_AHEAD_LINES = 24
# How many unfolded lines are looked through at most to fill a page that folds them.
MOST_BACK_LINES = 20_000
KEPT_HITS = 32
# Lines above a place that no traceback holds, but its exceptions' own: beyond these none is looked for.
STRANGERS = 3

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


class Stream:
    """One log with its clock and the query that thins it.

    Args:
        ref: whose it is.
        file: where it is read.
        start_t: when its attempt began.
        check: called now and then while much is skipped; raises to give up.
    """

    def __init__(self, ref: LogRef, file: LogFile, start_t: float, check: Callable[[], None]) -> None:
        self.ref = ref
        self.file = file
        self.query = Query()
        self.counts: Counts | None = None
        self.clock = LogClock(ref, file, start_t)
        self._check = check
        self._is_report = False
        self._hits: OrderedDict[int, tuple[int, tuple[int, ...]]] = OrderedDict()

    # -- what is shown ---------------------------------------------------------------------------------

    def ask(self, query: Query) -> None:
        """Show only the lines that this query means; none where it asks for other ranks only."""
        self.query = query
        self.counts = None
        self._hits.clear()

    def anew(self) -> None:
        """The file holds something else now."""
        self._hits.clear()
        self.clock.anew()
        self.counts = None if self.counts is None else Counts()

    @property
    def is_silent(self) -> bool:
        """Whether the query leaves this log out as a whole."""
        if self.query.stream and self.query.stream != self.ref.stream:
            return True
        return not self.ref.is_mixed and not self.query.is_by(self.ref.who)

    @property
    def is_whole(self) -> bool:
        """Whether the query lets all of its lines through."""
        return not self.query.reads_text and not (self.query.who and self.ref.is_mixed)

    def hits(self, chunk: int) -> tuple[int, ...]:
        """Where the lines begin that the query means, of those that begin in `chunk`."""
        kept = self._hits.get(chunk)
        if kept is not None and kept[0] in {-1, self.file.size}:
            self._hits.move_to_end(chunk)
            return kept[1]
        found = hits_of(self.file, chunk, self.query, self.ref)
        self._hits[chunk] = (-1 if (chunk + 2) * CHUNK_BYTES <= self.file.size else self.file.size, found)
        if len(self._hits) > KEPT_HITS:
            self._hits.popitem(last=False)
        return found

    def forward(self, offset: int) -> Iterator[TextLine]:
        """The lines that are meant, from `offset` on."""
        if self.is_silent:
            return
        if self.is_whole:
            yield from self.file.forward(offset)
            return
        chunk = offset // CHUNK_BYTES
        while chunk * CHUNK_BYTES < self.file.size:
            chunk = self.counts.next_full(chunk) if self.counts is not None else chunk
            hits = self.hits(chunk)
            for hit in hits[bisect_left(hits, offset) :]:
                yield from itertools.islice(self.file.forward(hit), 1)
            chunk += 1
            self._check()

    def block_start(self, offset: int) -> int:
        """Where the traceback begins that the line at `offset` is a part of; `offset` where it is of none."""
        return self._around(offset)[0]

    def rest_of_block(self, offset: int) -> int:
        """How many lines from `offset` on belong to a traceback that begins before it."""
        return self._around(offset)[1]

    def is_in_report(self, offset: int) -> bool:
        """Whether the line at `offset` is one of torchrun's own traceback, and not its first."""
        self._around(offset)
        return self._is_report

    def _around(self, offset: int) -> tuple[int, int]:
        """Where the traceback begins that the line at `offset` continues, and how many lines of it are left."""
        self._is_report = False
        line = (
            next(self.file.forward(offset), None) if offset and self.is_whole and not self.is_silent else None
        )
        if line is None:
            return offset, 0
        earlier = self.file.backward(offset)
        before = next(earlier, None)
        who, text = speaker_of(line.text, self.ref.who)
        if before is None or not may_be_inside(text, speaker_of(before.text, self.ref.who)[1]):
            return offset, 0
        texts = [text]
        heads: list[tuple[int, int]] = []
        strangers = 0
        for each in itertools.chain([before], itertools.islice(earlier, MOST_REPORT_LINES)):
            speaker, said = speaker_of(each.text, self.ref.who)
            if speaker != who or strangers > STRANGERS:
                break
            texts.append(said)
            if is_head(said):
                heads.append((len(texts) - 1, each.offset))
                strangers = 0
            strangers += not may_be_inside(said, "")
        if not heads:
            return offset, 0
        texts.reverse()
        here = len(texts) - 1
        for each in itertools.islice(self.file.forward(line.end), MOST_REPORT_LINES):
            speaker, said = speaker_of(each.text, self.ref.who)
            if speaker != who:
                break
            texts.append(said)
        for above, head in reversed(heads):  # the first of those that led to one another
            block = block_at(texts_from(texts, here - above))
            if block is not None and block.lines > above:
                self._is_report = block.is_report
                return head, block.lines - above
        return offset, 0

    def backward(self, offset: int) -> Iterator[TextLine]:
        """The lines that are meant and begin before `offset`, the nearest first."""
        if self.is_silent:
            return
        if self.is_whole:
            yield from self.file.backward(offset)
            return
        chunk = (min(offset, self.file.size) - 1) // CHUNK_BYTES
        while chunk >= 0:
            chunk = self.counts.previous_full(chunk) if self.counts is not None else chunk
            if chunk < 0:
                return
            hits = self.hits(chunk)
            for hit in reversed(hits[: bisect_left(hits, offset)]):
                yield from itertools.islice(self.file.forward(hit), 1)
            chunk -= 1
            self._check()

    # -- when ------------------------------------------------------------------------------------------

    @property
    def is_stamped(self) -> bool:
        """Whether its lines say when they were written."""
        return self.clock.is_stamped

    def grew(self, before_t: float, t: float) -> None:
        """It has its size since `t`, and had not at `before_t`."""
        self.clock.grew(before_t, t)

    def key(self, line: TextLine) -> float:
        """When a line was written, as well as can be told."""
        return self.clock.key(line)

    def offset_at(self, t: float) -> int:
        """Where the first line begins that was written at `t` or later."""
        return self.clock.offset_at(t)


def hits_of(file: LogFile, chunk: int, query: Query, ref: LogRef) -> tuple[int, ...]:
    """Where the lines begin that a query means, of those that begin in `chunk` of a log."""
    base, data = file.chunk_lines(chunk)
    found = [base + at for at in query.matches(data)] if data else []
    if query.who and ref.is_mixed:
        found = [at for at in found if query.is_by(speaker_of(_line_at(data, at - base), ref.who)[0])]
    return tuple(found)


def _line_at(data: bytes, at: int) -> str:
    stop = data.find(b"\n", at)
    return clean(data[at : stop if stop >= 0 else len(data)])


class _Unit(NamedTuple):
    """Lines of one log that stay together: one line, or a traceback. `key`: units that fold have the same."""

    key: tuple[str, ...]
    who: str
    lines: tuple[TextLine, ...]
    report: str = ""  # torchrun's own traceback in one line


class _Head:
    """The units of one log that come next, some of them looked at ahead.

    Args:
        stream: the log.
        place: where to begin.
        stop: where to end; None: at the log's end.
    """

    def __init__(self, stream: Stream, place: int, stop: int | None) -> None:
        self._lines = stream.forward(place)
        self._stop = stop
        self._who = stream.ref.who
        self._read: deque[tuple[TextLine, str, str]] = deque()  # what was read to see where a traceback ends
        self._rest = stream.rest_of_block(place)
        self.ahead: deque[_Unit] = deque()
        self.keys: Counter[tuple[str, ...]] = Counter()
        self.fill()

    def fill(self) -> None:
        """Look as far ahead as lines may be folded."""
        while len(self.ahead) < FOLD_AHEAD_LINES:
            unit = self._unit()
            if unit is None:
                return
            self.ahead.append(unit)
            self.keys[unit.key] += 1

    def _unit(self) -> _Unit | None:
        if not self._reach(0):
            return None
        line, who, text = self._read[0]
        count, is_report = 1, False
        if self._rest:
            count, self._rest = self._rest, 0
            self._reach(count - 1)
        elif MARK in text and (block := block_at(self._said_by(who))) is not None:
            count, is_report = block.lines, block.is_report
        if count == 1:
            self._read.popleft()
            return _Unit((text,), who, (line,))
        taken = [self._read.popleft() for _ in range(min(count, len(self._read)))]
        texts = tuple(said for _, _, said in taken)
        report = summary(texts, block) if is_report and block is not None else ""
        return _Unit(texts, who, tuple(each for each, _, _ in taken), report)

    def _said_by(self, who: str) -> At:
        def at(n: int) -> str | None:
            return self._read[n][2] if self._reach(n) and self._read[n][1] == who else None

        return at

    def _reach(self, n: int) -> bool:
        """Read on until there are more than `n` lines; False: there are not."""
        while len(self._read) <= n:
            line = next(self._lines, None)
            if line is None or (self._stop is not None and line.offset >= self._stop):
                self._lines = iter(())
                return False
            self._read.append((line, *speaker_of(line.text, self._who)))
        return True

    def take(self) -> _Unit:
        """The next unit."""
        taken = self.ahead.popleft()
        self.keys[taken.key] -= 1
        if not self.keys[taken.key]:
            del self.keys[taken.key]
        self.fill()
        return taken

    def depth_of(self, key: tuple[str, ...]) -> int | None:
        """How many units come before the one that says this; None: it is not near."""
        if key not in self.keys:
            return None
        return next(i for i, unit in enumerate(self.ahead) if unit.key == key)


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
    queue = [(streams[i].key(head.ahead[0].lines[0]), i) for i, head in enumerate(heads) if head.ahead]
    heapq.heapify(queue)
    given = 0

    def push(i: int) -> None:
        if heads[i].ahead:
            heapq.heappush(queue, (streams[i].key(heads[i].ahead[0].lines[0]), i))

    def rows(logs: Sequence[int]) -> Iterator[Row]:
        """The next unit of these logs, which say the same."""
        units = [heads[i].take() for i in logs]
        whose = tuple(dict.fromkeys(unit.who for unit in units))
        if units[0].report and folds:
            before = tuple(now)
            now[logs[0]] = units[0].lines[-1].end
            parts = tuple((logs[0], line) for line in units[0].lines)
            yield Row(before, whose, units[0].report, Tone.FOLDED, parts)
            return
        for n, text in enumerate(units[0].key):
            before = tuple(now)
            for i, unit in zip(logs, units, strict=True):
                now[i] = unit.lines[n].end
            mine = tuple((i, unit.lines[n]) for i, unit in zip(logs, units, strict=True))
            yield Row(before, whose, text, tone_of(text), mine)

    while queue and (most is None or given < most):
        t, first = heapq.heappop(queue)
        if not heads[first].ahead:
            continue
        unit = heads[first].ahead[0]
        if t != streams[first].key(unit.lines[0]):
            push(first)  # it was folded ahead of its turn
            continue
        may_fold = len(heads) > 1 and not unit.report and (len(unit.key) > 1 or unit.key[0].strip())
        others = _alike(heads, first, unit.key) if may_fold else []
        for other, depth in others:
            for _ in range(depth):
                for row in rows([other]):
                    yield row
                    given += 1
        for row in rows(sorted((first, *(other for other, _ in others)))):
            yield row
            given += 1
        push(first)


def _alike(heads: Sequence[_Head], first: int, key: tuple[str, ...]) -> list[tuple[int, int]]:
    """The logs that say the same next, and how many units of theirs come before; never units that others await."""
    found: list[tuple[int, int]] = []
    whose = {heads[first].ahead[0].who}
    for i, head in enumerate(heads):
        depth = None if i == first else head.depth_of(key)
        if depth is None or head.ahead[depth].who in whose:
            continue
        before = [unit.key for unit in itertools.islice(head.ahead, depth)]
        if not any(said in heads[first].keys for said in before):
            found.append((i, depth))
            whose.add(head.ahead[depth].who)
    return found


def place_before(streams: Sequence[Stream], place: Place, most: int) -> Place:
    """The place that many unfolded lines before another, by time."""
    now = list(place)
    sources = [stream.backward(at) for stream, at in zip(streams, place, strict=True)]
    queue: list[tuple[float, int, int]] = []

    def push(i: int) -> None:
        line = next(sources[i], None)
        if line is not None:
            heapq.heappush(queue, (-streams[i].key(line), -i, line.offset))

    for i in range(len(sources)):
        push(i)
    for _ in range(most):
        if not queue:
            break
        _, minus, offset = heapq.heappop(queue)
        now[-minus] = offset
        push(-minus)
    return tuple(now)


def rows_before(streams: Sequence[Stream], place: Place, most: int, *, folds: bool = False) -> list[Row]:
    """The last `most` rows before `place`."""
    speaking = sum(offset > 0 for offset in place)
    lines = most if speaking == 1 else most * 4
    while True:
        start = place_before(streams, place, lines)
        # A traceback that is begun in its midst would neither fold nor be known as one.
        start = tuple(stream.block_start(at) for stream, at in zip(streams, start, strict=True))
        rows = list(rows_from(streams, start, stop=place, folds=folds))
        if len(rows) >= most or lines >= MOST_BACK_LINES or not any(start):
            return rows[-most:] if most else []
        lines = min(max(lines * 4, most * speaking), MOST_BACK_LINES)
