"""One log as a view reads it: thinned by a query, its lines with their times, its tracebacks as wholes."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator

from supervisor.text.decode import clean
from supervisor.views.logblocks import MOST_REPORT_LINES, block_at, is_head, may_be_inside, texts_from
from supervisor.views.logclock import LogClock
from supervisor.views.logfile import LogFile, TextLine, segment_of
from supervisor.views.logindex import CHUNK_BYTES, Counts
from supervisor.views.logmatch import Query
from supervisor.views.logs import LogRef, speaker_of

KEPT_HITS = 32
# Lines above a place that no traceback holds, but its exceptions' own: beyond these none is looked for.
STRANGERS = 3


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
        if not offset or not self.is_whole or self.is_silent:
            return offset, 0
        lines = self.file.segment(segment_of(offset))
        at = bisect_left(lines, offset, key=_offset)
        line = lines[at] if at < len(lines) else None
        if line is None or line.offset != offset:
            return offset, 0
        who, text = speaker_of(line.text, self.ref.who)
        if at and not may_be_inside(text, speaker_of(lines[at - 1].text, self.ref.who)[1]):
            return offset, 0
        earlier = self.file.backward(offset)
        before = next(earlier, None)
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


def _offset(line: TextLine) -> int:
    return line.offset


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
