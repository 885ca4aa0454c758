"""One log as a view reads it: thinned by a query, its lines with their times, its tracebacks as wholes."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator

from supervisor.text.decode import clean
from supervisor.views.logs.clock import LogClock
from supervisor.views.logs.file import CHUNK_BYTES, Counts, LogFile, TextLine
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import LogRef, split_rank
from supervisor.views.logs.tracebacks import Trace, trace_around

KEPT_HITS = 32
# How many lines of a log are searched for a rank's newest line; the second, of a log of several ranks.
LAST_LINES = 8
LAST_MIXED_LINES = 64


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
        self._hits: OrderedDict[int, tuple[int, tuple[int, ...]]] = OrderedDict()
        self._last: tuple[int, int, dict[str, tuple[float, str]]] = (0, 0, {})
        self._writers: tuple[int, set[str]] = (-1, set())  # of which generation of the file

    # -- what is shown ---------------------------------------------------------------------------------

    def filter_by(self, query: Query) -> None:
        """Show only the lines that this query means; none where it asks for other ranks only."""
        self.query = query
        self.counts = None
        self._hits.clear()

    def reset(self) -> None:
        """The file holds something else now."""
        self._hits.clear()
        self.clock.reset()
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
        if self.is_excluded:
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
        trace = self._around(offset)
        return trace.head if trace is not None else offset

    def rest_of_block(self, offset: int) -> int:
        """How many lines from `offset` on belong to a traceback that begins before it."""
        trace = self._around(offset)
        return trace.block.lines - trace.above if trace is not None else 0

    def is_in_report(self, offset: int) -> bool:
        """Whether the line at `offset` is one of torchrun's own traceback, and not its first."""
        trace = self._around(offset)
        return trace is not None and trace.block.is_report

    def _around(self, offset: int) -> Trace | None:
        whole = self.is_whole and not self.is_excluded
        return trace_around(self.file, self.ref.who, offset) if whole else None

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
            hits = self.hits(chunk)
            for hit in reversed(hits[: bisect_left(hits, offset)]):
                yield from itertools.islice(self.file.forward(hit), 1)
            chunk -= 1
            self._check()

    # -- when ------------------------------------------------------------------------------------------

    def order(self, line: TextLine) -> tuple[int, float]:
        """Where a line stands among those of all logs: its attempt, then when it was written, as far as that is known."""
        return self.ref.attempt, self.clock.order(line)

    def offset_beside(self, t: float, *, is_first: bool) -> int:
        """Where the lines begin that stand below a line of another log written at `t`; no traceback is cut there.

        `is_first`: of lines of one time those of this log stand above.
        """
        at = self.clock.offset_at(t)
        before = next(self.file.backward(at), None)
        for offset in (*([before.offset] if before is not None else []), at):
            trace = trace_around(self.file, self.ref.who, offset)
            if trace is not None:
                written_t = self.clock.key(trace.last)
                is_above = written_t < t or (is_first and written_t == t)
                return trace.last.end if is_above else trace.head
        return at

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
                    found[who] = (self.clock.key(line), text)
                    if not self.ref.is_mixed:
                        break
            self._last = (file.generation, file.size, found)
        return self._last[2]


def hits_of(file: LogFile, chunk: int, query: Query, ref: LogRef) -> tuple[int, ...]:
    """Where the lines begin that a query means, of those that begin in `chunk` of a log."""
    base, data = file.chunk_lines(chunk)
    found = [base + at for at in query.offsets_in(data)] if data else []
    if query.who and ref.is_mixed:
        found = [at for at in found if query.is_by(split_rank(_line_at(data, at - base), ref.who)[0])]
    return tuple(found)


def _line_at(data: bytes, at: int) -> str:
    stop = data.find(b"\n", at)
    return clean(data[at : stop if stop >= 0 else len(data)])
