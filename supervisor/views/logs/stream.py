"""One log as a view reads it: thinned by a query, its lines with their times, its tracebacks as wholes."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from supervisor.run.arrivals import Arrivals
from supervisor.text.decode import clean
from supervisor.text.stamps import is_rising, shift_of, stamp_of
from supervisor.text.tracebacks import MOST_REPORT_LINES, Block, block_at, is_head, may_be_inside
from supervisor.views.logs.file import CHUNK_BYTES, Counts, LogFile, TextLine, segment_of
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import AGENT, LogRef, split_rank

# So many lines that a query means are known at most, and chunks that hold none: 16 GB of a log with few.
KEPT_FOUND = 1 << 16
KEPT_SEGMENTS = 512
# How many lines of a log are searched for a rank's newest line; the second, of a log of several ranks.
LAST_LINES = 8
LAST_MIXED_LINES = 64
# Lines above a place that no traceback holds, but its exceptions' own: beyond these none is looked for.
MOST_FOREIGN_LINES = 3
# A log has stamps if a third of its newest lines has one; so much of a log's beginning decides it, whatever comes later.
SNIFF_LINES = 40
SNIFF_BYTES = 1 << 16
# So many lines without a stamp, as of a config that is printed, may stand between two that have one.
STAMP_LINES = 2000
STAMP_SEGMENTS = 32
# torchrun looks at its ranks every 0.1 s: what it says of them within one look of the tailer, they wrote before.
REACTION_S = 0.05
# A log without times is taken to be written at its attempt's end if, at the busiest log's speed, it took less than this share.
SHORT = 0.25


class Trace(NamedTuple):
    """A traceback in a file: where its first line begins, and where its last one ends."""

    block: Block
    head: int
    end: int


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
        whole: of a replay, which limits `file`, the same file without a limit.
    """

    def __init__(
        self,
        ref: LogRef,
        file: LogFile,
        check: Callable[[], None],
        start_t: float = 0.0,
        index: Mapping[str, Arrivals] | None = None,
        whole: LogFile | None = None,
    ) -> None:
        self.ref = ref
        self.file = file
        self.query = Query()
        self.counts: Counts | None = None
        self.ended_t: float | None = None  # its attempt's: a copied file's time of change is later
        self.busiest_bytes_per_s = 0.0
        self.whole = whole or file
        self._check = check
        self._start_t = start_t
        self._index = {} if index is None else index
        self._found: OrderedDict[int, tuple[int, tuple[int, ...]]] = OrderedDict()
        self._found_size = 0
        self._last: tuple[int, int, dict[str, tuple[float, str]]] = (0, 0, {})
        self._writers: tuple[int, set[str]] = (-1, set())  # of which generation of the file
        self._shift: tuple[tuple[int, int], float | None] = ((-1, 0), None)
        self._stamps: OrderedDict[int, tuple[tuple[int, int], dict[int, float]]] = OrderedDict()

    # -- what is shown ---------------------------------------------------------------------------------

    def filter_by(self, query: Query) -> None:
        """Show only the lines that this query means; none where it asks for other ranks only."""
        self.query = query
        self.counts = None
        self._found.clear()
        self._found_size = 0

    def reset(self) -> None:
        """The file holds something else now."""
        self._found.clear()
        self._found_size = 0
        self.counts = None if self.counts is None else Counts()

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

    def found_in(self, chunk: int) -> tuple[int, ...]:
        """Where the lines begin that the query means, of those that begin in `chunk`."""
        kept = self._found.get(chunk)
        if kept is not None and kept[0] in {-1, self.file.size}:
            self._found.move_to_end(chunk)
            return kept[1]
        found = self._matches_in(chunk)
        self._found[chunk] = (-1 if (chunk + 2) * CHUNK_BYTES <= self.file.size else self.file.size, found)
        self._found_size += 1 + len(found) - (1 + len(kept[1]) if kept is not None else 0)
        while self._found_size > KEPT_FOUND and len(self._found) > 1:
            _, (_, oldest) = self._found.popitem(last=False)
            self._found_size -= 1 + len(oldest)
        return found

    def _matches_in(self, chunk: int) -> tuple[int, ...]:
        base, data = self.file.chunk_lines(chunk)
        found = [base + at for at in self.query.offsets_in(data)] if data else []
        if self.query.who and self.ref.is_mixed:
            found = [at for at in found if self.query.is_by(self._writer_of(data, at - base))]
        return tuple(found)

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
        chunk = offset // CHUNK_BYTES
        while chunk * CHUNK_BYTES < self.file.size:
            chunk = self.counts.next_full(chunk) if self.counts is not None else chunk
            found = self.found_in(chunk)
            for at in found[bisect_left(found, offset) :]:
                yield from itertools.islice(self.file.forward(at), 1)
            chunk += 1
            self._check()

    def backward(self, offset: int) -> Iterator[TextLine]:
        """The lines that are meant and begin before `offset`, the nearest first."""
        if self.is_excluded:
            return
        if self.is_whole:
            yield from self.file.backward(offset)
            return
        chunk = (min(offset, self.file.size) - 1) // CHUNK_BYTES
        while chunk >= 0:
            chunk = self.counts.previous_full(chunk) if self.counts is not None else chunk
            if chunk < 0:
                return
            found = self.found_in(chunk)
            for at in reversed(found[: bisect_left(found, offset)]):
                yield from itertools.islice(self.file.forward(at), 1)
            chunk -= 1
            self._check()

    # -- tracebacks ------------------------------------------------------------------------------------

    def trace_around(self, offset: int) -> Trace | None:
        """The traceback that is begun before the line at `offset` and continues with it; None: it is of none, or the log is thinned."""
        if not offset or not self.is_whole or self.is_excluded:
            return None
        lines = self.file.segment(segment_of(offset))
        at = bisect_left(lines, offset, key=lambda line: line.offset)
        if at >= len(lines) or lines[at].offset != offset:
            return None
        who, text = split_rank(lines[at].text, self.ref.who)
        if at and not self.is_hooks(lines[at].text) and text:
            before = split_rank(lines[at - 1].text, self.ref.who)[1]
            if not may_be_inside(text, before):
                return None
        for head in reversed(list(self._heads_above(offset, who))):
            trace = self._trace_from(head)  # the first of those that led to one another
            if trace is not None and trace.end > offset:
                return trace
        return None

    def _heads_above(self, offset: int, who: str) -> Iterator[int]:
        """Where tracebacks begin that a line may be a part of, the nearest first."""
        foreign = 0
        for line in itertools.islice(self.file.backward(offset), MOST_REPORT_LINES):
            writer, text = split_rank(line.text, self.ref.who)
            if writer != who or foreign > MOST_FOREIGN_LINES:
                return
            if is_head(text):
                foreign = 0
                yield line.offset
            elif not self.is_hooks(line.text) and not may_be_inside(text, ""):
                foreign += 1

    def _trace_from(self, offset: int) -> Trace | None:
        lines = self.file.forward(offset)
        read: list[tuple[TextLine, str, str]] = []

        def at(n: int) -> str | None:
            while len(read) <= n:
                line = next(lines, None)
                if line is None:
                    return None
                read.append((line, *split_rank(line.text, self.ref.who)))
            return read[n][2] if read[n][1] == read[0][1] else None

        block = block_at(at, lambda n: at(n) is not None and self.is_hooks(read[n][0].text))
        return Trace(block, offset, read[block.lines - 1][0].end) if block is not None else None

    def is_hooks(self, text: str) -> bool:
        """Whether PyTorch's own hook for exceptions wrote a line: in a rank's own log it alone puts ``[rank1]:`` before each line."""
        return self.ref.who not in {AGENT, ""} and split_rank(text, self.ref.who)[1] != text

    # -- when ------------------------------------------------------------------------------------------

    @property
    def written_t(self) -> float:
        """When the log was last written."""
        t = self.whole.written_t
        return t if self.ended_t is None else min(t, max(self.ended_t, self._start_t))

    @property
    def bytes_per_s(self) -> float:
        """How fast it was written, from its attempt's start to its last change."""
        return self.whole.size / max(self.written_t - self._start_t, 1.0) if self._start_t else 0.0

    @property
    def arrivals(self) -> Arrivals | None:
        """When its bytes arrived; None: nobody saw them arrive."""
        known = self._index.get(self.whole.path)
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
            return self._stamps_of(segment_of(line.offset)).get(line.offset, self.written_t)
        begin_t, bytes_per_s = self._spread()
        return begin_t + line.end / bytes_per_s

    def offset_at(self, t: float) -> int:
        """Where the first line begins that was written at `t` or later."""
        file = self.whole
        if (arrivals := self.arrivals) is not None:
            is_later = t > max(arrivals.batches[-1].t, self.written_t)
            return file.size if is_later else file.line_start(arrivals.offset_at(t))
        if self.is_stamped:
            return self._offset_of_stamp(t)
        begin_t, bytes_per_s = self._spread()
        return file.line_start(min(max(int((t - begin_t) * bytes_per_s), 0), file.size))

    def offset_beside(self, t: float) -> int:
        """Where the lines begin that stand below a line of another log written at `t`; no traceback is cut there."""
        at = min(self.offset_at(t), self.file.size)
        trace = self.trace_around(at)
        return trace.end if trace is not None else at

    def _spread(self) -> tuple[float, float]:
        """When its first byte was written, and bytes per second, at the speed of the busiest log of its attempt.

        A log that is short beside that one (a traceback alone in its file) was written at once, and so was the launcher's report.
        """
        size, written_t = max(self.whole.size, 1), self.written_t
        begin_t = min(self._start_t or written_t, written_t)
        if self.busiest_bytes_per_s:
            took_s = size / self.busiest_bytes_per_s
            is_short = self.ref.who == AGENT or took_s < SHORT * (written_t - begin_t)
            begin_t = max(begin_t, written_t - (0.0 if is_short else took_s))
        return begin_t, size / max(written_t - begin_t, 1e-3)

    def _stamps_shift(self) -> float | None:
        """What makes the lines' stamps wall time; None: too few carry one."""
        file = self.whole
        key = file.generation, min(file.size, SNIFF_BYTES)
        if self._shift[0] != key:
            newest = [line.text for line in itertools.islice(file.backward(file.size), SNIFF_LINES)][::-1]
            stamps = [t for text in newest if (t := stamp_of(text, self.written_t)) is not None]
            is_clock = len(stamps) > 1 and len(stamps) * 3 >= len(newest) and is_rising(stamps)
            self._shift = key, shift_of(stamps[-1], self.written_t) if is_clock else None
        return self._shift[1]

    def _stamp(self, text: str) -> float | None:
        t = stamp_of(text, self.written_t)
        return t + (self._stamps_shift() or 0.0) if t is not None else None

    def _stamps_of(self, number: int) -> dict[int, float]:
        """The times of a segment's lines, by offset: each line's stamp, else that of the last line before it."""
        file = self.whole
        key = file.generation, file.size if segment_of(file.size) <= number else -1
        kept = self._stamps.get(number)
        if kept is not None and kept[0] == key:
            return kept[1]
        above = itertools.chain.from_iterable(
            reversed(file.segment(n)) for n in range(number - 1, max(number - 1 - STAMP_SEGMENTS, -1), -1)
        )
        stamps = (self._stamp(line.text) for line in above)
        t = next((t for t in stamps if t is not None), self._start_t)
        times: dict[int, float] = {}
        for line in file.segment(number):
            stamp = self._stamp(line.text)
            t = times[line.offset] = t if stamp is None else stamp
        self._stamps[number] = key, times
        if len(self._stamps) > KEPT_SEGMENTS:
            self._stamps.popitem(last=False)
        return times

    def _offset_of_stamp(self, t: float) -> int:
        file = self.whole
        low, high = 0, file.size
        while low < high:
            middle = file.line_start((low + high) // 2)
            found = None
            for line in itertools.islice(file.forward(middle), STAMP_LINES):
                if line.offset >= high:
                    break
                if (stamp := self._stamp(line.text)) is not None:
                    found = (line, stamp)
                    break
            if found is None or found[1] >= t:
                high = middle
            else:
                low = max(found[0].end, low + 1)
        # Lines of the second before may follow, with stamps or without; the first one that is late enough is meant.
        for n, line in enumerate(file.forward(low)):
            if self.time_of(line) >= t:
                return line.offset
            if n == STAMP_LINES:
                return low
        return file.size

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
