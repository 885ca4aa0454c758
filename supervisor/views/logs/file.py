"""Random access to one log of any size: lines by place and by number, nothing held but what is in sight.

Reads are pread(2) at offsets, so a file of gigabytes opens like a small one. A line is what lies between two
newlines; its text is made safe to show (`text.decode.clean`): of a line redrawn with carriage returns the
newest state, of a very long one the beginning.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from supervisor.text.decode import CAP_MARK, LINE_CAP_BYTES, clean
from supervisor.views.logs.line_index import CHUNK_BYTES, Counts

# What is read and cut into lines at once: about a screen of lines, a third of a millisecond.
SEGMENT_BYTES = 1 << 15
# Segments kept: some 2 MiB of file, whatever its size.
KEPT_SEGMENTS = 48
# A line longer than this is not read whole to be shown.
WHOLE_LINE_BYTES = 1 << 16
STRIDE_BYTES = 1 << 20
MIN_STRIDE_BYTES = 1 << 13
MARK_BYTES = 64
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux alone has it


class Change(Enum):
    """What became of a file since the last look."""

    SAME = auto()
    GROWN = auto()
    ANEW = auto()  # truncated, rewritten, or another file took its place: all offsets are void
    GONE = auto()  # removed; what is open can still be read


class TextLine(NamedTuple):
    """One line. `end` is the offset after its newline, or the file's end where it is not ended (`is_open`)."""

    offset: int
    end: int
    text: str
    is_open: bool = False


def segment_of(offset: int) -> int:
    """The segment that holds the byte at `offset`."""
    return offset // SEGMENT_BYTES


class LogFile:
    """One file, open for reading. Lines are read by one thread; `read` and `lines` (the index) by any.

    Args:
        path: the log; it need not exist yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.written_t = 0.0
        self.generation = 0
        self.newlines = Counts()
        self.trouble = ""
        self._fd = -1
        self._identity = (0, 0)
        self._mark = (0, b"")
        self._gone = False
        self._segments: OrderedDict[int, tuple[int, tuple[TextLine, ...]]] = OrderedDict()
        self._no_newline = (0, 0)

    @property
    def is_open(self) -> bool:
        """Whether the file could be opened."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def refresh(self) -> Change:
        """Look whether the file grew, was cut, replaced or removed."""
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
        self.written_t = now.st_mtime
        if now.st_size < self.size or not self._is_same(now.st_size):
            self._forget()
            self.size = now.st_size
            self._remember()
            return Change.ANEW
        grown = now.st_size > self.size
        self.size = now.st_size
        if grown:
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
        self.size, self.written_t, self.trouble, self._gone = info.st_size, info.st_mtime, "", False
        self._remember()
        return True

    def _forget(self) -> None:
        self.generation += 1
        self.newlines = Counts()
        self._segments.clear()
        self._no_newline = (0, 0)
        self._mark = (0, b"")

    def _remember(self) -> None:
        """Keep the last bytes seen: another content of at least this size is told from growth by them."""
        start = max(self.size - MARK_BYTES, 0)
        self._mark = (start, self.read(start, self.size - start))

    def _is_same(self, size: int) -> bool:
        start, seen = self._mark
        return size == self.size or self.read(start, len(seen)) == seen

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes at `offset`; empty where there are none or the disk fails."""
        if self._fd < 0 or size <= 0:
            return b""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            self.trouble = error.strerror or "cannot be read"
            return b""

    def is_at_hand(self, start: int, stop: int) -> bool:
        """Whether these bytes are in memory, so that reading them waits for no disk; False where that cannot be told.

        preadv2(2) with RWF_NOWAIT, which filesystems of this machine know and those of a network refuse.
        """
        start, stop = max(start, 0), min(stop, self.size)
        if self._fd < 0 or _NO_WAIT is None:
            return False
        try:
            return (
                start >= stop
                or os.preadv(self._fd, [bytearray(stop - start)], start, _NO_WAIT) == stop - start
            )
        except OSError:
            return False

    # -- places ------------------------------------------------------------------------------------------

    def newline_from(self, offset: int) -> int:
        """The first newline at or after `offset`; -1: none up to the file's end."""
        low, high = self._no_newline
        start = at = high if low <= offset < high else offset
        while at < self.size:
            at = self._skip_bare(at)
            data = self.read(at, min(STRIDE_BYTES, self.size - at))
            found = data.find(b"\n")
            if found >= 0:
                return at + found
            if not data:
                break
            at += len(data)
        if at - offset > STRIDE_BYTES:
            # A writer that never ends its line: at the next look only what is new is read.
            self._no_newline = (low if start == high and high else offset, at)
        return -1

    def newline_before(self, offset: int) -> int:
        """The last newline before `offset`; -1: none."""
        at = offset
        stride = MIN_STRIDE_BYTES
        while at > 0:
            low, high = self._no_newline
            if low < at <= high:
                at = low
                continue
            chunk = self.newlines.previous_full((at - 1) // CHUNK_BYTES)
            if chunk < 0:
                return -1
            at = min(at, (chunk + 1) * CHUNK_BYTES)
            start = max(at - stride, 0)
            found = self.read(start, at - start).rfind(b"\n")
            if found >= 0:
                return start + found
            at = start
            stride = min(4 * stride, STRIDE_BYTES)
        return -1

    def _skip_bare(self, offset: int) -> int:
        """`offset`, or the start of the next chunk that may hold a newline."""
        chunk = offset // CHUNK_BYTES
        full = self.newlines.next_full(chunk)
        return offset if full == chunk else min(full * CHUNK_BYTES, self.size)

    def line_start(self, offset: int) -> int:
        """Where the line begins that holds the byte at `offset`."""
        return self.newline_before(min(offset, self.size)) + 1

    def number_at(self, offset: int) -> int | None:
        """The number, from 0, of the line that begins at `offset`; None: not counted that far yet."""
        chunk = offset // CHUNK_BYTES
        if chunk > self.newlines.chunks:
            return None
        start = chunk * CHUNK_BYTES
        return self.newlines.before(chunk) + self.read(start, offset - start).count(b"\n")

    def offset_of(self, number: int) -> int | None:
        """Where line `number`, from 0, begins; None: beyond the end, or not counted that far yet."""
        if number <= 0:
            return 0
        chunk = self.newlines.chunk_of(number - 1)
        if chunk is None:
            chunk = (
                self.newlines.chunks
            )  # the tail that is not counted is less than a chunk once counting is done
        start = chunk * CHUNK_BYTES
        data = self.read(start, CHUNK_BYTES)
        place = -1
        for _ in range(number - self.newlines.before(chunk)):
            place = data.find(b"\n", place + 1)
            if place < 0:
                return None
        return start + place + 1 if start + place + 1 < self.size else None

    @property
    def counted_bytes(self) -> int:
        """How far the lines are counted."""
        return min(self.newlines.chunks * CHUNK_BYTES, self.size)

    @property
    def line_count(self) -> int | None:
        """All lines, the half last one too; None: not counted yet."""
        done = self.newlines.chunks * CHUNK_BYTES
        if self.size - done >= CHUNK_BYTES:
            return None
        tail = self.read(done, self.size - done)
        last = tail[-1:] or self.read(self.size - 1, 1)
        return self.newlines.total + tail.count(b"\n") + (1 if last not in {b"\n", b""} else 0)

    def chunk_lines(self, chunk: int) -> tuple[int, bytes]:
        """The lines that begin in `chunk`, as bytes, and where they begin; of a line that goes on for ever the head."""
        start = chunk * CHUNK_BYTES
        stop = min(start + CHUNK_BYTES, self.size)
        base = max(start - 1, 0)
        data = self.read(base, stop - base)
        first = 0 if start == 0 else data.find(b"\n") + 1
        if start and not first:
            return stop, b""
        if data[first:] and not data.endswith(b"\n"):
            rest = self.read(stop, SEGMENT_BYTES)
            newline = rest.find(b"\n")
            if newline < 0 and len(rest) == SEGMENT_BYTES:
                rest += self.read(stop + len(rest), STRIDE_BYTES)
                newline = rest.find(b"\n")
            data += rest[: newline + 1] if newline >= 0 else rest
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
        stop = min(start + SEGMENT_BYTES, self.size)
        if start >= stop:
            return
        base = max(start - 1, 0)
        data = self.read(base, stop - base)
        first = 0 if start == 0 else data.find(b"\n") + 1
        if start and not first:
            return
        at = first
        limit = len(data)
        while at < limit:
            end = data.find(b"\n", at)
            if end < 0:
                yield self._last(base + at, data[at:])
                return
            yield TextLine(base + at, base + end + 1, clean(data[at:end]))
            at = end + 1

    def _last(self, offset: int, head: bytes) -> TextLine:
        """A line that reaches beyond its segment."""
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
            # The line that holds the byte before `at` begins here; all that begin before it lie in earlier segments.
            start = self.line_start(at - 1) if self._starts(at) else self.line_start(at)
            for line in reversed(self.segment(start // SEGMENT_BYTES)):
                if line.offset < at:
                    yield line
                    at = line.offset
            at = min(at, start)

    def _starts(self, offset: int) -> bool:
        return offset in {0, self.size} or self.read(offset - 1, 1) == b"\n"
