"""One log as a view reads it: thinned by a query, its matches counted, its lines with their times."""

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

# The matches of so many chunks are kept: at 2,600 lines a chunk, some MiB where every line matches.
KEPT_CHUNKS = 64
# How many lines of a log are searched for a rank's newest line; the second, of a log of several ranks.
LAST_LINES = 8
LAST_MIXED_LINES = 64
# A log has stamps if a third of its newest lines has one; so much of a log's beginning decides it, whatever comes later.
SNIFF_LINES = 40
SNIFF_BYTES = 1 << 16
# So many lines without a stamp, as of a config that is printed, may stand between two that have one.
STAMP_LINES = 2000
KEPT_TIMES = 20_000
# A log without times that has less than this share of the largest one's bytes was written at once.
SHORT = 0.25
# torchrun looks at its ranks every 0.1 s: what it says of them within one look of the tailer, they wrote before.
REACTION_S = 0.05


class Stream:
    """One log with the times of its lines, and the query that thins it.

    A line's time is that of its arrival, as the attempt's index has it. A log without an index (of an earlier version, or not
    started by stoker) has its lines' own stamps; without those, its lines are spread evenly up to its last write.

    Args:
        ref: whose it is.
        file: where it is read.
        check: called now and then while much is skipped; raises to give up.
        start_t: when its attempt began, wall seconds.
        index: the arrival index of its attempt, by path.
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
        self.ended_t: float | None = None  # its attempt's: a copied file's time of change is later
        self.most_bytes = 0  # of the logs of its attempt's ranks
        self._check = check
        self._start_t = start_t
        self._index = {} if index is None else index
        self._counts = Counts()  # matches a chunk
        self._tail = (-1, 0)  # the file's size, and how many matches are in what is not counted a chunk
        self._found: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._last: tuple[int, int, dict[str, tuple[float, str]]] = (0, 0, {})
        self._writers: tuple[int, set[str]] = (-1, set())  # of which generation of the file
        self._shift: tuple[tuple[int, int], float | None] = ((-1, 0), None)
        self._times: dict[int, float] = {}  # of lines, by their stamps

    # -- what is shown ---------------------------------------------------------------------------------

    def filter_by(self, query: Query) -> None:
        """Show only the lines that this query means; none where it asks for other ranks only."""
        self.query = query
        self.reset()

    def reset(self) -> None:
        """The file holds something else now, or something else is meant."""
        self._found.clear()
        self._times.clear()
        self._counts, self._tail = Counts(), (-1, 0)

    @property
    def is_excluded(self) -> bool:
        """Whether the query leaves this log out as a whole."""
        if self.query.stream and self.query.stream != self.ref.stream:
            return True
        if self.query.nodes and self.ref.node not in self.query.nodes:
            return True
        return not self.ref.is_mixed and not self.query.is_by(self.ref.who)

    @property
    def is_whole(self) -> bool:
        """Whether the query lets all of its lines through."""
        return not self.query.reads_text and not (self.query.who and self.ref.is_mixed)

    def _found_in(self, chunk: int) -> tuple[int, ...]:
        """Where the lines begin that the query means, of those that begin in `chunk`."""
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
        """The lines that are meant, from `offset` on."""
        if self.is_excluded:
            return
        if self.is_whole:
            yield from self.file.forward(offset)
            return
        chunk = self._counts.next_full(offset // CHUNK_BYTES)
        while chunk * CHUNK_BYTES < self.file.size:
            found = self._found_in(chunk)
            for at in found[bisect_left(found, offset) :]:
                yield from itertools.islice(self.file.forward(at), 1)
            chunk = self._counts.next_full(chunk + 1)
            self._check()

    def backward(self, offset: int) -> Iterator[TextLine]:
        """The lines that are meant and begin before `offset`, the nearest first."""
        if self.is_excluded:
            return
        if self.is_whole:
            yield from self.file.backward(offset)
            return
        chunk = self._counts.previous_full((min(offset, self.file.size) - 1) // CHUNK_BYTES)
        while chunk >= 0:
            found = self._found_in(chunk)
            for at in reversed(found[: bisect_left(found, offset)]):
                yield from itertools.islice(self.file.forward(at), 1)
            chunk = self._counts.previous_full(chunk - 1)
            self._check()

    # -- counting --------------------------------------------------------------------------------------

    def count(self) -> bool:
        """Count what is meant in one more chunk; False: nothing is left to count."""
        size = self.file.size
        if self.is_excluded or self._tail[0] == size:
            return False
        if self.is_whole:
            return self.file.count()
        chunk = self._counts.chunks
        stop = (chunk + 1) * CHUNK_BYTES
        found = len(self._found_in(chunk))
        # The last line that begins in a chunk may still grow, and match then.
        if stop > size or self.file.newline_from(stop - 1) < 0:
            self._tail = (size, found)
        else:
            self._counts.append(found)
            self._tail = (-1, 0)
        return True

    @property
    def counted_bytes(self) -> int:
        """How far it is counted."""
        size = self.file.size
        if self.is_whole:
            return self.file.counted_bytes
        return size if self._tail[0] == size else min(self._counts.chunks * CHUNK_BYTES, size)

    @property
    def total(self) -> int:
        """How many lines are meant, as far as they are counted."""
        if self.is_excluded:
            return 0
        return self.file.line_count or 0 if self.is_whole else self._counts.total + self._tail[1]

    def before(self, offset: int) -> int | None:
        """How many lines that are meant begin before `offset`; None: not counted yet."""
        if self.is_excluded or not offset:
            return 0
        if offset >= self.file.size:
            return self.total if self.counted_bytes >= self.file.size else None
        if self.is_whole:
            return self.file.number_at(offset)
        chunk = offset // CHUNK_BYTES
        if chunk > self._counts.chunks:
            return None
        return self._counts.before(chunk) + sum(at < offset for at in self._found_in(chunk))

    # -- when ------------------------------------------------------------------------------------------

    @property
    def written_t(self) -> float:
        """When the log was last written."""
        t = self.file.full_written_t
        return t if self.ended_t is None else min(t, max(self.ended_t, self._start_t))

    @property
    def arrivals(self) -> Arrivals | None:
        """When its bytes arrived; None: nobody saw them arrive."""
        known = self._index.get(self.file.path)
        return known if known is not None and known.batches else None

    @property
    def is_stamped(self) -> bool:
        """Whether its lines carry the time at which they were written."""
        return self._stamps_shift() is not None

    def order(self, line: TextLine) -> tuple[int, float]:
        """Where a line stands among those of all logs: its attempt, then its time; the launcher's after those that it reports."""
        return self.ref.attempt, self.time_of(line) + (REACTION_S if self.ref.who == AGENT else 0.0)

    def time_of(self, line: TextLine) -> float:
        """When a line was written, as far as that is known, wall seconds."""
        if (arrivals := self.arrivals) is not None:
            if line.end <= arrivals.end:
                return arrivals.time_of(line.end)
            return max(arrivals.batches[-1].t, self.written_t)  # the tailer is about to read it
        if self.is_stamped:
            return self._stamped_t(line)
        return self.written_t - (self.file.full_size - line.end) / self._bytes_per_s()

    def offset_at(self, t: float) -> int:
        """Where the first line begins that was written at `t` or later."""
        file = self.file
        if (arrivals := self.arrivals) is not None:
            is_later = t > max(arrivals.batches[-1].t, self.written_t)
            return file.full_size if is_later else file.line_start(arrivals.offset_at(t))
        if self.is_stamped:
            return self._offset_of_stamp(t)
        left_s, bytes_per_s = self.written_t - t, self._bytes_per_s()
        if math.isinf(bytes_per_s) or left_s < 0:
            return 0 if left_s >= 0 else file.full_size
        return file.line_start(max(file.full_size - int(left_s * bytes_per_s), 0))

    def _bytes_per_s(self) -> float:
        """How fast it was written, evenly. At once: the launcher's report, and what is short beside the ranks' logs (a traceback alone)."""
        took_s = self.written_t - self._start_t if self._start_t else 0.0
        is_short = self.ref.who == AGENT or self.file.full_size < SHORT * self.most_bytes
        return math.inf if is_short or took_s <= 0 else self.file.full_size / took_s

    def _stamps_shift(self) -> float | None:
        """What makes the lines' stamps wall time; None: too few carry one."""
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
        """A line's stamp, else that of the last line before it."""
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
        """Where the first line begins that bears `t` or a later time: stamps rise, so that halving the file finds it."""
        file = self.file
        low, high = 0, file.full_size
        while low < high:
            middle = file.line_start((low + high) // 2)
            offset, stamp = next(self._stamps_from(middle), (high, t))
            if offset >= high or stamp >= t:
                high = middle
            else:
                low = max(offset + 1, low + 1)
        return next(
            (offset for offset, stamp in self._stamps_from(file.line_start(low)) if stamp >= t),
            file.full_size,
        )

    def _stamps_from(self, offset: int) -> Iterator[tuple[int, float]]:
        """The lines that bear a time, from a line's beginning on: where they begin, and the time."""
        while data := self.file.read(offset, SNIFF_BYTES):
            whole = data.rfind(b"\n") + 1 or len(data)
            for raw in data[:whole].removesuffix(b"\n").split(b"\n"):
                if (stamp := self._stamp(clean(raw))) is not None:
                    yield offset, stamp
                offset += len(raw) + 1
            self._check()

    # -- who -------------------------------------------------------------------------------------------

    def writers(self) -> set[str]:
        """Who writes here: of a log of several ranks those that its beginning, its end and its newest lines name."""
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
        """The newest line of each rank that writes here, with its time; whatever the query."""
        file = self.file
        if self._last[:2] != (file.generation, file.size):
            found: dict[str, tuple[float, str]] = {}
            most = LAST_MIXED_LINES if self.ref.is_mixed else LAST_LINES
            for line in itertools.islice(file.backward(file.size), most):
                who, text = split_rank(line.text, self.ref.who)
                if who not in found and text.strip():
                    found[who] = (self.time_of(line), text)
                    if not self.ref.is_mixed:
                        break
            self._last = (file.generation, file.size, found)
        return self._last[2]
