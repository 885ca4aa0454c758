"""What is counted of the logs of a view: newlines for line numbers, matches for searches and filters, chunk after chunk.

The reading thread counts while nothing else is asked of it. What it makes are running totals (`file.Counts`), by which lines are
found, too: a chunk without a match is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from supervisor.views.logs.commands import Tally
from supervisor.views.logs.file import CHUNK_BYTES, STRIDE_BYTES, Counts, LogFile
from supervisor.views.logs.merge import Place
from supervisor.views.logs.query import Query
from supervisor.views.logs.stream import Stream

# Logs up to this size are counted unasked, for the number of lines alone: 64 ranks may have written gigabytes.
COUNT_UNASKED_BYTES = 64 << 20


@dataclass(slots=True, eq=False)
class Task:
    """One log's count of what its query means; without a query, of its newlines. `tail`: in what is not a whole chunk."""

    stream: Stream
    query: Query | None = None
    counts: Counts = field(default_factory=Counts)
    tail: int = 0
    tail_size: int = -1
    generation: int = 0

    @property
    def file(self) -> LogFile:
        """What is counted."""
        return self.stream.file

    @property
    def done_bytes(self) -> int:
        """How far the log is counted."""
        return self.file.size if self.is_done else min(self.counts.chunks * CHUNK_BYTES, self.file.size)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to count now."""
        return self.tail_size == self.file.size and self.generation == self.file.generation

    @property
    def total(self) -> int:
        """What was found so far."""
        return self.counts.total + self.tail

    def step(self) -> bool:
        """Count one chunk; False: nothing is left to count."""
        if self.generation != self.file.generation:
            self.generation = self.file.generation
            self.counts = self.file.newlines if self.query is None else Counts()
            self.tail, self.tail_size = 0, -1
        size = self.file.size
        if self.tail_size == size:
            return False
        chunk = self.counts.chunks
        stop = (chunk + 1) * CHUNK_BYTES
        if self.query is None:
            if stop > size:
                self.tail_size = size
                return True
            # A chunk's newlines: short of them only when the file was cut meanwhile, which the next look finds.
            self.counts.append(self.file.read(stop - CHUNK_BYTES, CHUNK_BYTES).count(b"\n"))
            return True
        found = len(self.stream.found_in(chunk))
        if stop > size or not self._is_final(stop, size):
            self.tail, self.tail_size = found, size
            return True
        self.counts.append(found)
        self.tail = 0
        return True

    def _is_final(self, stop: int, size: int) -> bool:
        """Whether the last line that begins before `stop` cannot change any more."""
        if size - stop > STRIDE_BYTES or self.file.read(stop - 1, 1) == b"\n":
            return True
        return b"\n" in self.file.read(stop, size - stop)


class LineCounter:
    """Counts for one view. `finders`: the logs thinned to what is searched among the lines that are shown.

    Args:
        check: see `Stream`.
        counts_unasked: count the lines of logs of any size.
    """

    def __init__(self, check: Callable[[], None], *, counts_unasked: bool) -> None:
        self.finders: list[Stream] = []
        self._check = check
        self._counts_unasked = counts_unasked
        self._streams: Sequence[Stream] = ()
        self._lines: list[Task] = []
        self._shown: list[Task] = []
        self._found: list[Task] = []

    def plan(self, streams: Sequence[Stream], query: Query, searched: Query) -> None:
        """Say what has to be counted for these logs and queries; what is known already continues where it was left."""
        both = query & searched
        finders = {(finder.ref, finder.query): finder for finder in self.finders}
        known = {(task.stream, task.query): task for task in (*self._lines, *self._shown, *self._found)}
        included = [stream for stream in streams if not stream.is_excluded]
        is_thinned = any(not stream.is_whole for stream in included)
        self._streams, self.finders = streams, []
        for stream in streams:
            finder = finders.get((stream.ref, both))
            if finder is None or finder.file is not stream.file:
                finder = Stream(stream.ref, stream.file, self._check)
                finder.filter_by(both)
            self.finders.append(finder)
        sought = [finder for finder in self.finders if not finder.is_excluded] if searched else []

        def task_of(stream: Stream, wanted: Query | None) -> Task:
            counts = stream.file.newlines if wanted is None else Counts()
            return known.get((stream, wanted)) or Task(stream, wanted, counts)

        self._lines = [task_of(stream, None) for stream in included]
        self._shown = [task_of(stream, query) for stream in included] if is_thinned else []
        self._found = [task_of(finder, both) for finder in sought]
        self.use()

    def step(self, *, is_asked: bool) -> bool:
        """Count one chunk of what is wanted most; False: nothing is left. `is_asked`: where the page stands matters."""
        size = sum(task.file.size for task in self._lines)
        wanted = is_asked or self._counts_unasked or size <= COUNT_UNASKED_BYTES
        return any(task.step() for task in (*self._found, *self._shown, *(self._lines if wanted else ())))

    def use(self) -> None:
        """Counts have grown: find lines by them."""
        for tasks, streams in ((self._shown, self._streams), (self._found, self.finders)):
            for stream in streams:
                task = next((each for each in tasks if each.file is stream.file), None)
                is_current = task is not None and task.generation == stream.file.generation
                stream.counts = task.counts if task is not None and is_current else None

    def reset(self, index: int) -> None:
        """A log holds something else now."""
        self.finders[index].reset()

    # -- what was counted ------------------------------------------------------------------------------

    @property
    def counted_ratio(self) -> float:
        """How far the lines are counted."""
        return _done([task for task in self._lines if task.file.size])

    @property
    def line_count(self) -> int | None:
        """All lines of the logs that are included; None: not counted."""
        return _sum_of([task.file.line_count for task in self._lines if task.file.size])

    def shown(self) -> Tally | None:
        """How many lines the query lets through; None: it leaves no line out."""
        if not self._shown:
            return None
        return Tally(sum(task.total for task in self._shown), _done(self._shown))

    def found(self, place: Place | None) -> Tally:
        """How often what is searched was found; with a place, which of them begins there."""
        before = _before(self.finders, place) if place is not None else None
        ordinal = before + 1 if before is not None else None
        total = sum(task.total for task in self._found)
        return Tally(total, _done(self._found), ordinal, at_match=place is not None)

    def below(self, place: Place) -> int | None:
        """How many lines that the query lets through begin at a place or after it; None: not counted."""
        if not self._shown:
            numbers = [
                s.file.lines_from(at)
                for s, at in zip(self._streams, place, strict=True)
                if not s.is_excluded and at < s.file.size
            ]
            return _sum_of(numbers)
        before = _before(self._streams, place) if _done(self._shown) >= 1 else None
        return sum(task.total for task in self._shown) - before if before is not None else None


def _sum_of(counts: Sequence[int | None]) -> int | None:
    return sum(n for n in counts if n is not None) if None not in counts else None


def _done(tasks: Sequence[Task]) -> float:
    size = sum(task.file.size for task in tasks)
    return sum(task.done_bytes for task in tasks) / size if size else 1.0


def _before(streams: Sequence[Stream], place: Place) -> int | None:
    """How many lines that are meant begin before a place; None: not counted yet."""
    total = 0
    for stream, offset in zip(streams, place, strict=True):
        chunk, counts = offset // CHUNK_BYTES, stream.counts
        if stream.is_excluded or not offset:
            continue
        if counts is None or chunk > counts.chunks:
            return None
        total += counts.before(chunk) + sum(at < offset for at in stream.found_in(chunk))
    return total
