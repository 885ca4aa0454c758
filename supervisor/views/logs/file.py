"""Random access to one log of any size: lines by place and by number, keeping only what is in sight.

Reads are pread(2) at offsets, so a file of gigabytes opens like a small one. A line lies between two
newlines; its text is made safe to show (`text.decode.clean`): the newest state of a line redrawn with
carriage returns, the beginning of a very long one.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from supervisor.text.decode import CAP_MARK, LINE_CAP_BYTES, clean

# Bytes per running total of the index: 8 bytes for 256 KiB, 32 KiB for 1 GiB. Counting or searching a
# chunk takes well under a millisecond, so a key press never waits for more than that.
CHUNK_BYTES = 1 << 18
# The unit of reading, splitting and timing: about a screen of lines. The last unit of a growing file is timed again
# at each look, so it is small: with 32 KiB a page of 64 ranks at 10,000 lines/s took 110 ms, with 4 KiB it takes 21 ms.
SEGMENT_BYTES = 1 << 12
# Segments kept: some 1.5 MiB of file, whatever its size.
KEPT_SEGMENTS = 384
# A longer line is not read in full to be shown.
WHOLE_LINE_BYTES = 1 << 16
STRIDE_BYTES = 1 << 20
MIN_STRIDE_BYTES = 1 << 13
MARK_BYTES = 64


class Counts:
    """Running totals over a file's chunks, in order. One thread appends, any thread may read."""

    def __init__(self) -> None:
        self._ends = array("Q")

    @property
    def chunks(self) -> int:
        """Chunks counted so far."""
        return len(self._ends)

    @property
    def total(self) -> int:
        """Their sum."""
        return self._ends[-1] if self._ends else 0

    def append(self, count: int) -> None:
        """Add the count of the next chunk."""
        self._ends.append(self.total + count)

    def before(self, chunk: int) -> int:
        """The total before `chunk`, which is at most `chunks`."""
        return self._ends[chunk - 1] if chunk else 0

    def chunk_of(self, ordinal: int) -> int | None:
        """The chunk with item number `ordinal`, counted from 0; None: not counted that far."""
        return bisect_right(self._ends, ordinal) if ordinal < self.total else None

    def next_full(self, chunk: int) -> int:
        """The first chunk from `chunk` on with a nonzero count or no count yet."""
        if chunk >= self.chunks:
            return chunk
        return bisect_right(self._ends, self.before(chunk))

    def previous_full(self, chunk: int) -> int:
        """The last chunk up to `chunk` with a nonzero count or no count yet; -1: none."""
        if not 0 <= chunk < self.chunks:
            return chunk
        total = self._ends[chunk]
        if not total:
            return -1
        # The chunk with the last of the first `total` items.
        return min(bisect_right(self._ends, total - 1), chunk)


class Change(Enum):
    """How a file changed since the last look."""

    SAME = auto()
    GROWN = auto()
    ANEW = auto()  # truncated, rewritten or replaced by another file: all offsets are void
    GONE = auto()  # removed; the open file can still be read
    REWOUND = auto()  # a replay went back: less of the same content existed at the moment shown


class TextLine(NamedTuple):
    """One line. `end` is the offset after its newline, or the end of the file if it has none (`is_open`)."""

    offset: int
    end: int
    text: str
    is_open: bool = False


def segment_of(offset: int) -> int:
    """The segment with the byte at `offset`."""
    return offset // SEGMENT_BYTES


class LogFile:
    """One file, open for reading. One thread reads lines; any may use `read` and `lines` (the index).

    Args:
        path: the log; it need not exist yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.written_t = 0.0
        self.generation = 0
        # In a replay: including what comes after the moment shown.
        self.full_size, self.full_written_t = (
            0,
            0.0,
        )
        self.newlines = Counts()
        self.trouble = ""
        self._limit: tuple[int, float] | None = None
        self._fd = -1
        self._identity = (0, 0)
        self._mark = (0, b"")
        self._gone = False
        self._segments: OrderedDict[int, tuple[int, tuple[TextLine, ...]]] = OrderedDict()

    @property
    def is_open(self) -> bool:
        """Whether the file could be opened."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def limit(self, size: int, t: float) -> None:
        """In a replay: how many bytes existed at the moment shown; takes effect at the next `refresh`."""
        self._limit = (size, t)

    def _take_sizes(self, info: os.stat_result) -> None:
        self.size, self.written_t = self.full_size, self.full_written_t = info.st_size, info.st_mtime
        if self._limit is not None:
            self.size, self.written_t = min(self.size, self._limit[0]), min(self.written_t, self._limit[1])

    def refresh(self) -> Change:
        """Check whether the file grew, was truncated, replaced or removed."""
        try:
            named: os.stat_result | None = os.stat(self.path)
        except OSError as error:
            named = None
            if self._fd < 0:
                self.trouble = error.strerror or "cannot be read"
                return Change.SAME
        if self._fd < 0 or (named is not None and (named.st_dev, named.st_ino) != self._identity):
            first = self._fd < 0
            if named is None or not self._open(named):
                return Change.SAME
            return Change.GROWN if first else Change.ANEW
        try:
            now = os.fstat(self._fd)
        except OSError as error:  # ESTALE of a network filesystem
            self.trouble = error.strerror or "cannot be read"
            return Change.SAME
        before = self.size
        is_same = now.st_size >= before and self._holds_mark()
        self._take_sizes(now)
        if not is_same or self.size < before:
            self._forget()
            self._remember()
            return Change.REWOUND if is_same else Change.ANEW
        if self.size > before:
            self._remember()
            return Change.GROWN
        if named is None:
            was, self._gone = self._gone, True
            return Change.SAME if was else Change.GONE
        return Change.SAME

    def _open(self, named: os.stat_result) -> bool:
        if not stat.S_ISREG(named.st_mode):
            self.trouble = "not a regular file"
            return False
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self.trouble = error.strerror or "cannot be opened"
            return False
        self.close()
        self._fd = fd
        info = os.fstat(fd)
        self._identity = (info.st_dev, info.st_ino)
        self._forget()
        self._take_sizes(info)
        self.trouble, self._gone = "", False
        self._remember()
        return True

    def _forget(self) -> None:
        self.generation += 1
        self.newlines = Counts()
        self._segments.clear()
        self._mark = (0, b"")

    def _remember(self) -> None:
        """Keep the last bytes seen: they tell a replaced file of at least this size from one that grew."""
        start = max(self.size - MARK_BYTES, 0)
        self._mark = (start, self.read(start, self.size - start))

    def _holds_mark(self) -> bool:
        start, seen = self._mark
        return self.read(start, len(seen)) == seen

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes at `offset`; empty beyond the end or if the disk fails."""
        if self._fd < 0 or size <= 0:
            return b""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            self.trouble = error.strerror or "cannot be read"
            return b""

    # -- places ------------------------------------------------------------------------------------------

    def newline_from(self, offset: int) -> int:
        """The first newline at or after `offset`; -1: none up to the file's end."""
        at, stride = offset, MIN_STRIDE_BYTES
        while at < self.size:
            data = self.read(at, min(stride, self.size - at))
            found = data.find(b"\n")
            if found >= 0:
                return at + found
            if not data:
                break
            at += len(data)
            stride = min(4 * stride, STRIDE_BYTES)
        return -1

    def line_start(self, offset: int) -> int:
        """The start of the line that contains the byte at `offset`."""
        at = min(offset, self.full_size)
        stride = MIN_STRIDE_BYTES
        while at > 0:
            start = max(at - stride, 0)
            found = self.read(start, at - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
            stride = min(4 * stride, STRIDE_BYTES)
        return 0

    def number_at(self, offset: int) -> int | None:
        """The number, from 0, of the line that begins at `offset`; None: not counted that far yet."""
        chunk = offset // CHUNK_BYTES
        if chunk > self.newlines.chunks:
            return None
        start = chunk * CHUNK_BYTES
        return self.newlines.before(chunk) + self.read(start, offset - start).count(b"\n")

    def offset_of(self, number: int) -> int | None:
        """The start of line `number`, counted from 0; None: beyond the end, or not counted that far yet."""
        if number <= 0:
            return 0
        chunk = self.newlines.chunk_of(number - 1)
        if chunk is None:  # once counting is done, less than a chunk is uncounted
            chunk = self.newlines.chunks
        start = chunk * CHUNK_BYTES
        data = self.read(start, min(CHUNK_BYTES, self.size - start))
        place = -1
        for _ in range(number - self.newlines.before(chunk)):
            place = data.find(b"\n", place + 1)
            if place < 0:
                return None
        return start + place + 1 if start + place + 1 < self.size else None

    def count(self) -> bool:
        """Count the newlines of one more chunk; False: no whole chunk is left to count."""
        start = self.newlines.chunks * CHUNK_BYTES
        if start + CHUNK_BYTES > self.size:
            return False
        self.newlines.append(self.read(start, CHUNK_BYTES).count(b"\n"))
        return True

    @property
    def counted_bytes(self) -> int:
        """How far the lines are counted; less than a chunk needs no counting ahead."""
        counted = self.newlines.chunks * CHUNK_BYTES
        return self.size if self.size - counted < CHUNK_BYTES else counted

    @property
    def line_count(self) -> int | None:
        """All lines, including a partial last one; None: not counted yet."""
        if self.counted_bytes < self.size:
            return None
        total = self.number_at(self.size)
        is_open = self.size > 0 and self.read(self.size - 1, 1) != b"\n"
        return total + is_open if total is not None else None

    def chunk_lines(self, chunk: int) -> tuple[int, bytes]:
        """The lines that begin in `chunk`, as bytes, and their starts; only the head of a line that never ends."""
        start = chunk * CHUNK_BYTES
        stop = min(start + CHUNK_BYTES, self.size)
        base = max(start - 1, 0)
        data = self.read(base, stop - base)
        first = 0 if start == 0 else data.find(b"\n") + 1
        if start and not first:
            return stop, b""
        if data[first:] and not data.endswith(b"\n"):
            newline = self.newline_from(stop)
            stop = self.size if newline < 0 else newline + 1
            data += self.read(base + len(data), min(stop - base - len(data), STRIDE_BYTES))
        return base + first, data[first:]

    # -- lines -------------------------------------------------------------------------------------------

    def segment(self, number: int) -> tuple[TextLine, ...]:
        """The lines that begin in segment `number`, in order."""
        kept = self._segments.get(number)
        if kept is not None and kept[0] in {-1, self.size}:
            self._segments.move_to_end(number)
            return kept[1]
        lines = tuple(self._cut(number * SEGMENT_BYTES))
        is_final = bool(lines) and not lines[-1].is_open and (number + 1) * SEGMENT_BYTES <= self.size
        self._segments[number] = (-1 if is_final else self.size, lines)
        if len(self._segments) > KEPT_SEGMENTS:
            self._segments.popitem(last=False)
        return lines

    def _cut(self, start: int) -> Iterator[TextLine]:
        """The lines that begin in the segment at `start`."""
        stop = min(start + SEGMENT_BYTES, self.size)
        base = max(start - 1, 0)
        data = self.read(base, stop - base)
        at = data.find(b"\n") + 1 if start else 0
        if start and not at:
            return
        while at < len(data):
            end = data.find(b"\n", at)
            if end < 0:
                yield self._last(base + at, data[at:])
                return
            yield TextLine(base + at, base + end + 1, clean(data[at:end]))
            at = end + 1

    def _last(self, offset: int, head: bytes) -> TextLine:
        """A line that extends beyond its segment."""
        newline = self.newline_from(offset + len(head))
        is_open = newline < 0
        stop = self.size if is_open else newline
        end = stop if is_open else newline + 1
        if stop - offset <= WHOLE_LINE_BYTES:
            raw = self.read(offset, stop - offset)
            return TextLine(offset, end, clean(raw), is_open)
        tail = self.read(stop - LINE_CAP_BYTES, LINE_CAP_BYTES)
        state = tail.find(b"\r")
        if 0 <= state < len(tail.rstrip(b"\r \n")):
            return TextLine(offset, end, clean(tail[state + 1 :]), is_open)
        text = clean(self.read(offset, LINE_CAP_BYTES).partition(b"\r")[0])
        return TextLine(offset, end, text.removesuffix(CAP_MARK) + CAP_MARK, is_open)

    def forward(self, offset: int) -> Iterator[TextLine]:
        """The lines that begin at or after `offset`."""
        number = offset // SEGMENT_BYTES
        while number * SEGMENT_BYTES < self.size:
            lines = self.segment(number)
            for line in lines:
                if line.offset >= offset:
                    yield line
            if lines:
                number = max(number + 1, lines[-1].end // SEGMENT_BYTES)
                offset = max(offset, lines[-1].end)
                if lines[-1].is_open:
                    return
            else:
                newline = self.newline_from(max(number * SEGMENT_BYTES - 1, 0))
                if newline < 0:
                    return
                number = max(number + 1, (newline + 1) // SEGMENT_BYTES)

    def backward(self, offset: int) -> Iterator[TextLine]:
        """The lines that begin before `offset`, the nearest first."""
        at = min(offset, self.size)
        while at > 0:
            # The line with the byte before `at` is the last that begins before it: in the same segment, often cached, or earlier.
            start, lines = at - 1, self.segment(segment_of(at - 1))
            if not lines or lines[0].offset >= at:
                start = self.line_start(at - 1)
                lines = self.segment(segment_of(start))
            for line in reversed(lines):
                if line.offset < at:
                    yield line
                    at = line.offset
            at = min(at, start)
