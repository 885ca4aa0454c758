"""A single log as a view reads it: filtered by a query, with match counts and line times."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from supervisor.run.arrivals import Arrivals
from supervisor.text.decode import clean
from supervisor.text.stamps import is_rising, shift_of, stamp_of
from supervisor.views.logs.file import CHUNK_BYTES, Counts, LogFile, TextLine
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import AGENT, LogRef, split_rank

# Matches are cached for this many chunks: at 2,600 lines a chunk, a few MiB if every line matches.
KEPT_CHUNKS = 64
# How many lines of a log to search for a rank's newest line.
LAST_LINES = 64
# A log is stamped if a third of its newest lines has a time stamp. This much of a log settles the question.
SNIFF_LINES = 40
SNIFF_BYTES = 1 << 16
# At most this many unstamped lines, such as a printed config, may come between two stamped lines.
STAMP_LINES = 2000
KEPT_TIMES = 20_000
# A log without times and with less than this share of the largest log's bytes was written at once.
SHORT = 0.25
# torchrun polls its ranks every 0.1 s, so events that it reports within one tailer poll happened earlier.
REACTION_S = 0.05


class Stream:
    """A log with line times, filtered by a query.

    A line's time is its arrival time in the attempt's index. Logs with no index (from an older version, or not
    started by stoker) use the timestamps in their lines or, failing that, even spacing up to the last write.

    Args:
        ref: identifies the log.
        file: the open file.
        check: called periodically during a long skip; raises an exception to abort it.
        start_t: when the attempt started, as wall time in seconds.
        index: the attempt's arrival index, keyed by path.
    """

    def __init__(
        self,
        ref: LogRef,
        file: LogFile,
        check: Callable[[], None],
        start_t: float = 0.0,
        index: Mapping[str, Arrivals] | None = None,
    ) -> None:
        self.ref = ref
        self.file = file
        self.query = Query()
        self.ended_t: float | None = None  # end of the attempt; a copied file's modification time is later
        self.most_bytes = 0  # in the largest rank log of the attempt
        self._check = check
        self._start_t = start_t
        self._index = {} if index is None else index
        self._counts = Counts()  # matches per chunk
        self._tail = (-1, 0)  # the file's size, and the number of matches in its uncounted rest
        self._found: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._last: tuple[int, int, dict[str, tuple[float, str]]] = (0, 0, {})
        self._writers: tuple[int, set[str]] = (-1, set())  # by generation of the file
        self._shift: tuple[tuple[int, int], float | None] = ((-1, 0), None)
        self._times: dict[int, float] = {}  # times of lines, from their stamps

    # -- shown lines -----------------------------------------------------------------------------------

    def filter_by(self, query: Query) -> None:
        """Show only lines that match the query, or none at all if it selects only other ranks."""
        self.query = query
        self.reset()

    def reset(self) -> None:
        """Clear cached results after a change to the file's content or the query."""
        self._found.clear()
        self._times.clear()
        self._counts, self._tail = Counts(), (-1, 0)

    @property
    def is_excluded(self) -> bool:
        """Whether the query rules out the entire log."""
        if self.query.stream and self.query.stream != self.ref.stream:
            return True
        if self.query.nodes and self.ref.node not in self.query.nodes:
            return True
        return not self.ref.is_mixed and not self.query.is_by(self.ref.who)

    @property
    def is_whole(self) -> bool:
        """Whether the query includes every line of this log."""
        return not self.query.reads_text and not (self.query.who and self.ref.is_mixed)

    def _found_in(self, chunk: int) -> tuple[int, ...]:
        """Return the start of each matching line that begins in `chunk`."""
        size = self.file.size
        kept = self._found.get(chunk)
        if kept is not None and kept[0] in {-1, size}:
            return kept[1]
        base, data = self.file.chunk_lines(chunk)
        found = [base + at for at in self.query.offsets_in(data)]
        if self.query.who and self.ref.is_mixed:
            found = [at for at in found if self.query.is_by(self._writer_of(data, at - base))]
        if len(self._found) >= KEPT_CHUNKS:
            self._found.clear()
        self._found[chunk] = (-1 if (chunk + 2) * CHUNK_BYTES <= size else size, tuple(found))
        return self._found[chunk][1]

    def _writer_of(self, data: bytes, at: int) -> str:
        stop = data.find(b"\n", at)
        return split_rank(clean(data[at : stop if stop >= 0 else len(data)]), self.ref.who)[0]

    def forward(self, offset: int) -> Iterator[TextLine]:
        """Yield the matching lines that start at or after `offset`."""
        if self.is_excluded:
            return
        if self.is_whole:
            yield from self.file.forward(offset)
            return
        for chunk in range(offset // CHUNK_BYTES, self.file.size // CHUNK_BYTES + 1):
            if self._counts.is_empty(chunk):
                continue
            found = self._found_in(chunk)
            for at in found[bisect_left(found, offset) :]:
                yield from itertools.islice(self.file.forward(at), 1)
            self._check()

    def backward(self, offset: int) -> Iterator[TextLine]:
        """Yield the matching lines that start before `offset`, nearest first."""
        if self.is_excluded:
            return
        if self.is_whole:
            yield from self.file.backward(offset)
            return
        for chunk in range((min(offset, self.file.size) - 1) // CHUNK_BYTES, -1, -1):
            if self._counts.is_empty(chunk):
                continue
            found = self._found_in(chunk)
            for at in reversed(found[: bisect_left(found, offset)]):
                yield from itertools.islice(self.file.forward(at), 1)
            self._check()

    # -- counting --------------------------------------------------------------------------------------

    def count(self) -> bool:
        """Count the matches in the next chunk. Return False once every chunk has been counted."""
        size = self.file.size
        if self.is_excluded or self._tail[0] == size:
            return False
        if self.is_whole:
            return self.file.count()
        chunk = self._counts.chunks
        stop = (chunk + 1) * CHUNK_BYTES
        found = len(self._found_in(chunk))
        # The last line that begins in a chunk may still grow and then match.
        if stop > size or self.file.next_start(stop - 1) < 0:
            self._tail = (size, found)
        else:
            self._counts.append(found)
            self._tail = (-1, 0)
        return True

    @property
    def counted_bytes(self) -> int:
        """The number of bytes counted so far."""
        size = self.file.size
        if self.is_whole:
            return self.file.counted_bytes
        return size if self._tail[0] == size else min(self._counts.chunks * CHUNK_BYTES, size)

    @property
    def total(self) -> int:
        """The number of matching lines counted so far."""
        if self.is_excluded:
            return 0
        return self.file.line_count or 0 if self.is_whole else self._counts.total + self._tail[1]

    def before(self, offset: int) -> int | None:
        """Return how many matching lines start before `offset`, or None if they have not been counted yet."""
        if self.is_excluded or not offset:
            return 0
        if offset >= self.file.size:
            return self.total if self.counted_bytes >= self.file.size else None
        if self.is_whole:
            return self.file.number_at(offset)
        chunk = offset // CHUNK_BYTES
        if chunk > self._counts.chunks:
            return None
        return self._counts.before(chunk) + bisect_left(self._found_in(chunk), offset)

    # -- times -----------------------------------------------------------------------------------------

    @property
    def written_t(self) -> float:
        """The time of the last write to the log, as wall time in seconds."""
        t = self.file.written_t
        return t if self.ended_t is None else min(t, max(self.ended_t, self._start_t))

    @property
    def arrivals(self) -> Arrivals | None:
        """The arrival times of the log's bytes, or None if the log is not in an arrival index."""
        known = self._index.get(self.file.path)
        return known if known is not None and known.batches else None

    @property
    def is_stamped(self) -> bool:
        """Whether the lines have timestamps."""
        return self._stamps_shift() is not None

    def order(self, line: TextLine) -> float:
        """Return the time used to order a line among all logs. Launcher lines sort after the lines they report on."""
        return self.time_of(line) + (REACTION_S if self.ref.who == AGENT else 0.0)

    def time_of(self, line: TextLine) -> float:
        """Return when a line was written, as wall time in seconds. Without an index or timestamps, this is an estimate."""
        if (arrivals := self.arrivals) is not None:
            if line.end <= arrivals.end:
                return arrivals.time_of(line.end)
            return max(arrivals.batches[-1].t, self.written_t)  # the tailer is about to read it
        if self.is_stamped:
            return self._stamped_t(line)
        return self.written_t - (self.file.full_size - line.end) / self._bytes_per_s()

    def offset_at(self, t: float) -> int:
        """Return the offset of the first line written at or after `t`."""
        file = self.file
        if (arrivals := self.arrivals) is not None:
            is_later = t > max(arrivals.batches[-1].t, self.written_t)
            return file.full_size if is_later else file.line_start(arrivals.offset_at(t))
        if self.is_stamped:
            return self._offset_of_stamp(t)
        if t > self.written_t:
            return file.full_size
        left_bytes = (self.written_t - t) * self._bytes_per_s() if t < self.written_t else 0.0
        return file.line_start(int(max(file.full_size - left_bytes, 0)))

    def _bytes_per_s(self) -> float:
        """Return the average write rate in bytes/s; infinite for the launcher's log or a log much shorter than the rank logs."""
        took_s = self.written_t - self._start_t if self._start_t else 0.0
        is_short = self.ref.who == AGENT or self.file.full_size < SHORT * self.most_bytes
        return math.inf if is_short or took_s <= 0 else self.file.full_size / took_s

    def _stamps_shift(self) -> float | None:
        """Return the offset from the log's timestamps to wall time, or None if too few lines have a timestamp."""
        file = self.file
        key = file.generation, min(file.full_size, SNIFF_BYTES)
        if self._shift[0] != key:
            data = file.read(max(file.full_size - SNIFF_BYTES, 0), SNIFF_BYTES)
            newest = [clean(raw) for raw in data.splitlines()[-SNIFF_LINES:]]
            stamps = [t for text in newest if (t := stamp_of(text, self.written_t)) is not None]
            is_clock = len(stamps) > 1 and len(stamps) * 3 >= len(newest) and is_rising(stamps)
            self._shift = key, shift_of(stamps[-1], self.written_t) if is_clock else None
        return self._shift[1]

    def _stamp(self, text: str) -> float | None:
        t = stamp_of(text, self.written_t)
        return t + (self._stamps_shift() or 0.0) if t is not None else None

    def _stamped_t(self, line: TextLine) -> float:
        """Return the timestamp of a line, or of the closest line above that has one."""
        t, passed = self._start_t, []
        lines = itertools.chain([line], self.file.backward(line.offset))
        for each in itertools.islice(lines, STAMP_LINES):
            known = self._times.get(each.offset)
            known = self._stamp(each.text) if known is None else known
            passed.append(each.offset)
            if known is not None:
                t = known
                break
        if len(self._times) > KEPT_TIMES:
            self._times.clear()
        self._times.update(dict.fromkeys(passed, t))
        return t

    def _offset_of_stamp(self, t: float) -> int:
        """Return the offset of the first line stamped `t` or later. Timestamps only increase, so bisection works."""
        low, high = 0, self.file.full_size
        while low < high:
            self._check()
            middle = self.file.line_start((low + high) // 2)
            offset, stamp = next(self._stamps_from(middle), (high, t))
            if offset >= high or stamp >= t:
                high = middle
            else:
                low = max(offset + 1, low + 1)
        stamps = self._stamps_from(self.file.line_start(low))
        return next((offset for offset, stamp in stamps if stamp >= t), self.file.full_size)

    def _stamps_from(self, offset: int) -> Iterator[tuple[int, float]]:
        """Yield the offset and time of each timestamped line. `offset` must be the start of a line."""
        while data := self.file.read(offset, SNIFF_BYTES):
            whole = data.rfind(b"\n") + 1 or len(data)
            for raw in data[:whole].removesuffix(b"\n").split(b"\n"):
                if (stamp := self._stamp(clean(raw))) is not None:
                    yield offset, stamp
                offset += len(raw) + 1
            self._check()

    # -- writers ---------------------------------------------------------------------------------------

    def writers(self) -> set[str]:
        """Return the log's writers. If several ranks share it, only its beginning, end and latest lines are searched."""
        if not self.ref.is_mixed:
            return {self.ref.who}
        file = self.file
        if self._writers[0] != file.generation and file.size:
            found: set[str] = set()
            for chunk in {0, (file.size - 1) // CHUNK_BYTES}:
                for raw in file.chunk_lines(chunk)[1].splitlines():
                    found.add(split_rank(clean(raw), self.ref.who)[0])
            self._writers = (file.generation, found)
        self._writers[1].update(self.last_lines())
        return self._writers[1]

    def last_lines(self) -> dict[str, tuple[float, str]]:
        """Return the time and text of each rank's latest line in this log, regardless of the query."""
        file = self.file
        if self._last[:2] != (file.generation, file.size):
            found: dict[str, tuple[float, str]] = {}
            for line in itertools.islice(file.backward(file.size), LAST_LINES):
                who, text = split_rank(line.text, self.ref.who)
                if who not in found and text.strip():
                    found[who] = (self.time_of(line), text)
                    if not self.ref.is_mixed:
                        break
            self._last = (file.generation, file.size, found)
        return self._last[2]
