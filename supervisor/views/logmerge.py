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
from supervisor.text.stamps import stamp_of
from supervisor.views.logfile import LogFile, TextLine, segment_of
from supervisor.views.logindex import CHUNK_BYTES, Counts
from supervisor.views.logmatch import Query
from supervisor.views.logs import LogRef, Tone, speaker_of, tone_of
from supervisor.views.logtime import GrowthClock, is_rising, shift_of

# How far ahead of the others a log may be and its lines still be folded with theirs.
FOLD_AHEAD_LINES = 24
# How many unfolded lines are looked through at most to fill a page that folds them.
MOST_BACK_LINES = 20_000
KEPT_SEGMENTS = 64
KEPT_HITS = 32
SNIFF_LINES = 40
# Lines without a stamp take the one before; so far back is it looked for.
CARRY_SEGMENTS = 4

Place = tuple[int, ...]


class Row(NamedTuple):
    """One shown line, folded from `parts`: (log, its line). `place` is before all of them."""

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
        self.busiest_bytes_per_s = 0.0
        self.counts: Counts | None = None
        self._check = check
        self._start_t = start_t
        self._keys: OrderedDict[int, tuple[int, int, dict[int, float]]] = OrderedDict()
        self._hits: OrderedDict[int, tuple[int, tuple[int, ...]]] = OrderedDict()
        self._clock: GrowthClock | None = None
        self._shift_s: float | None = None

    # -- what is shown ---------------------------------------------------------------------------------

    def ask(self, query: Query) -> None:
        """Show only the lines that this query means; none where it asks for other ranks only."""
        self.query = query
        self.counts = None
        self._hits.clear()

    def anew(self) -> None:
        """The file holds something else now."""
        self._keys.clear()
        self._hits.clear()
        self._clock = self._shift_s = None
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
    def bytes_per_s(self) -> float:
        """How fast it was written, from its attempt's start to its last change."""
        return self.file.size / max(self.file.written_t - self._start_t, 1.0) if self._start_t else 0.0

    @property
    def is_stamped(self) -> bool:
        """Whether its lines say when they were written."""
        return self._known_clock() is not None and self._shift_s is not None

    def grew(self, before_t: float, t: float) -> None:
        """It has its size since `t`, and had not at `before_t`."""
        self._known_clock().grew(self.file.size, before_t, t)

    def key(self, line: TextLine) -> float:
        """When a line was written, as well as can be told; of one that is still redrawn, the newest state."""
        if line.is_open:
            return self._known_clock().time_of(self.file.size)
        number = segment_of(line.offset)
        kept = self._keys.get(number)
        if kept is None or kept[0] != self.file.generation or kept[1] not in {-1, self.file.size}:
            lines = self.file.segment(number)
            done = bool(lines) and segment_of(self.file.size) > number
            kept = (self.file.generation, -1 if done else self.file.size, self._keys_of(number, lines))
            self._keys[number] = kept
            if len(self._keys) > KEPT_SEGMENTS:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(number)
        found = kept[2].get(line.offset)
        return found if found is not None else self._known_clock().time_of(line.end)

    def _keys_of(self, number: int, lines: Sequence[TextLine]) -> dict[int, float]:
        clock = self._known_clock()
        keys: dict[int, float] = {}
        if self._shift_s is not None:
            t = self._carried(number)
            for line in lines:
                t = self._stamp(line.text) or t
                keys[line.offset] = t if t is not None else clock.time_of(line.end)
            return keys
        # A traceback stays whole: an indented line and the one before it go with the line that they lead to.
        inner = [speaker_of(line.text, self.ref.who)[1][:1].isspace() for line in lines]
        t = 0.0
        for index in range(len(lines) - 1, -1, -1):
            leads = index + 1 < len(lines) and (inner[index] or inner[index + 1])
            t = t if leads else clock.time_of(lines[index].end)
            keys[lines[index].offset] = t
        return keys

    def _carried(self, number: int) -> float | None:
        for before in range(number - 1, max(number - 1 - CARRY_SEGMENTS, -1), -1):
            for line in reversed(self.file.segment(before)):
                if (t := self._stamp(line.text)) is not None:
                    return t
        return None

    def _stamp(self, text: str) -> float | None:
        t = stamp_of(text, self.file.written_t)
        return t + (self._shift_s or 0.0) if t is not None else None

    def _known_clock(self) -> GrowthClock:
        if self._clock is None:
            file = self.file
            start_t = self._start_t or file.written_t
            if self.busiest_bytes_per_s:
                # A traceback alone in its file was written at once, not all along: no log is slower than the busiest.
                start_t = max(start_t, file.written_t - file.size / self.busiest_bytes_per_s)
            self._clock = GrowthClock(start_t, file.size, file.written_t)
            newest = list(itertools.islice(file.backward(file.size), SNIFF_LINES))[::-1]
            stamps = [t for line in newest if (t := stamp_of(line.text, file.written_t)) is not None]
            if len(stamps) * 3 >= len(newest) and len(stamps) > 1 and is_rising(stamps):
                self._shift_s = shift_of(stamps[-1], file.written_t)
        return self._clock

    def offset_at(self, t: float) -> int:
        """Where the first line begins that was written at `t` or later."""
        if not self.is_stamped:
            return self.file.line_start(self._known_clock().offset_of(t))
        low, high = 0, self.file.size
        while low < high:
            middle = self.file.line_start((low + high) // 2)
            found = None
            for line in itertools.islice(self.file.forward(middle), SNIFF_LINES):
                if line.offset >= high:
                    break
                if (stamp := self._stamp(line.text)) is not None:
                    found = (line, stamp)
                    break
            if found is None or found[1] >= t:
                high = middle
            else:
                low = max(found[0].end, low + 1)
        # Lines of the second before may follow; the first one that is late enough is meant.
        for line in self.file.forward(low):
            stamp = self._stamp(line.text)
            if stamp is None or stamp >= t:
                return line.offset
        return self.file.size


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


class _Head:
    """The lines of one log that come next, some of them looked at ahead."""

    def __init__(self, lines: Iterator[TextLine], stop: int | None, who: str) -> None:
        self._lines = lines
        self._stop = stop
        self._who = who
        self.ahead: deque[tuple[TextLine, str, str]] = deque()
        self.texts: Counter[str] = Counter()
        self.fill()

    def fill(self) -> None:
        """Look as far ahead as lines may be folded."""
        while len(self.ahead) < FOLD_AHEAD_LINES:
            line = next(self._lines, None)
            if line is None or (self._stop is not None and line.offset >= self._stop):
                self._lines = iter(())
                return
            who, text = speaker_of(line.text, self._who)
            self.ahead.append((line, who, text))
            self.texts[text] += 1

    def take(self) -> tuple[TextLine, str, str]:
        """The next line."""
        taken = self.ahead.popleft()
        self.texts[taken[2]] -= 1
        if not self.texts[taken[2]]:
            del self.texts[taken[2]]
        self.fill()
        return taken

    def depth_of(self, text: str) -> int | None:
        """How many lines come before the one that says this; None: it is not near."""
        if text not in self.texts:
            return None
        return next(i for i, (_, _, said) in enumerate(self.ahead) if said == text)


def rows_from(
    streams: Sequence[Stream], place: Place, stop: Place | None = None, most: int | None = None
) -> Iterator[Row]:
    """The rows from `place` on, up to `stop`, at most `most`."""
    heads = [
        _Head(stream.forward(at), stop[i] if stop else None, stream.ref.who)
        for i, (stream, at) in enumerate(zip(streams, place, strict=True))
    ]
    now = list(place)
    queue = [(streams[i].key(head.ahead[0][0]), i) for i, head in enumerate(heads) if head.ahead]
    heapq.heapify(queue)
    given = 0

    def push(i: int) -> None:
        if heads[i].ahead:
            heapq.heappush(queue, (streams[i].key(heads[i].ahead[0][0]), i))

    def take(i: int) -> tuple[TextLine, str, str]:
        taken = heads[i].take()
        now[i] = taken[0].end
        return taken

    while queue and (most is None or given < most):
        t, first = heapq.heappop(queue)
        if not heads[first].ahead:
            continue
        if t != streams[first].key(heads[first].ahead[0][0]):
            push(first)  # it was folded ahead of its turn
            continue
        text = heads[first].ahead[0][2]
        others = _alike(heads, first, text) if len(heads) > 1 and text.strip() else []
        for other, depth in others:
            for _ in range(depth):
                before = tuple(now)
                line, who, said = take(other)
                yield Row(before, (who,), said, tone_of(said), ((other, line),))
                given += 1
        before = tuple(now)
        folded = [(i, *take(i)) for i in sorted((first, *(other for other, _ in others)))]
        whose = tuple(dict.fromkeys(who for _, _, who, _ in folded))
        yield Row(before, whose, text, tone_of(text), tuple((i, line) for i, line, _, _ in folded))
        given += 1
        push(first)


def _alike(heads: Sequence[_Head], first: int, text: str) -> list[tuple[int, int]]:
    """The logs that say the same next, and how many lines of theirs come before; never lines that others await."""
    found: list[tuple[int, int]] = []
    whose = {heads[first].ahead[0][1]}
    for i, head in enumerate(heads):
        depth = None if i == first else head.depth_of(text)
        if depth is None or head.ahead[depth][1] in whose:
            continue
        before = [said for _, _, said in itertools.islice(head.ahead, depth)]
        if not any(said in heads[first].texts for said in before):
            found.append((i, depth))
            whose.add(head.ahead[depth][1])
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


def rows_before(streams: Sequence[Stream], place: Place, most: int) -> list[Row]:
    """The last `most` rows before `place`."""
    speaking = sum(offset > 0 for offset in place)
    lines = most if speaking == 1 else most * 4
    while True:
        start = place_before(streams, place, lines)
        rows = list(rows_from(streams, start, stop=place))
        if len(rows) >= most or lines >= MOST_BACK_LINES or sum(len(row.parts) for row in rows) < lines:
            return rows[-most:] if most else []
        lines = min(max(lines * 4, most * speaking), MOST_BACK_LINES)
