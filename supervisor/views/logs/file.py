"""Random access to a log of any size, by offset or line number, without keeping its content in memory.

Reads are pread(2) calls, so a multi-gigabyte file opens as fast as a small one. Lines are separated by
newlines, and their text is made safe to show (see `text.decode.clean`): a line redrawn with carriage
returns is reduced to its latest state, and a very long line to its beginning.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from supervisor.text.decode import CAP_MARK, LINE_CAP_BYTES, clean

# Bytes per running total of the index: 8 bytes for 256 KiB, 32 KiB for 1 GiB. Counting or searching a
# chunk takes well under a millisecond, so a key press never waits for more than that.
CHUNK_BYTES = 1 << 18
# The unit of reading lines: about a screen. A page of 64 ranks reads a few units of each rank.
BLOCK_BYTES = 1 << 12
# The unit of searching for the next newline.
STRIDE_BYTES = 1 << 16
# A line longer than this is not read in full to be shown.
WHOLE_LINE_BYTES = 1 << 16
MARK_BYTES = 64


class Counts:
    """Running totals over consecutive chunks of a file. One thread appends; any thread may read."""

    def __init__(self) -> None:
        self._ends = array("Q")

    @property
    def chunks(self) -> int:
        """The number of chunks counted so far."""
        return len(self._ends)

    @property
    def total(self) -> int:
        """The sum of the counts."""
        return self._ends[-1] if self._ends else 0

    def append(self, count: int) -> None:
        """Add the count of the next chunk."""
        self._ends.append(self.total + count)

    def before(self, chunk: int) -> int:
        """Return the total before `chunk`, which is at most `chunks`."""
        return self._ends[chunk - 1] if chunk else 0

    def chunk_of(self, ordinal: int) -> int:
        """Return the chunk that contains item `ordinal` (from 0), or the first uncounted chunk."""
        return bisect_right(self._ends, ordinal)

    def is_empty(self, chunk: int) -> bool:
        """Check whether a chunk has been counted and contains no items."""
        return chunk < self.chunks and self.before(chunk) == self._ends[chunk]


class Change(Enum):
    """How a file changed since the last check."""

    SAME = auto()
    GROWN = auto()
    ANEW = auto()  # truncated, rewritten or replaced by another file: all offsets are void
    REWOUND = auto()  # a replay went back, so less of the same content existed


class TextLine(NamedTuple):
    """One line. `end` is the offset after the newline, or the end of the file if there is no newline."""

    offset: int
    end: int
    text: str


class LogFile:
    """A file that is open for reading. In a replay, `full_size` includes content written after the current time.

    Args:
        path: the log; it need not exist yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = self.full_size = 0
        self.written_t = 0.0
        self.generation = 0
        self.newlines = Counts()
        self.trouble = ""
        self._limit: int | None = None
        self._fd = -1
        self._identity = (0, 0)
        self._mark = (0, b"")

    @property
    def is_open(self) -> bool:
        """Whether the file could be opened."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def limit(self, size: int) -> None:
        """Limit the file to the size it had at some point in a replay. Takes effect at the next `refresh`."""
        self._limit = size

    def refresh(self) -> Change:
        """Check whether the file has grown or been truncated, replaced or removed."""
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
        except OSError as error:  # ESTALE on a network filesystem
            self.trouble = error.strerror or "cannot be read"
            return Change.SAME
        before, (start, seen) = self.size, self._mark
        is_same = now.st_size >= before and self.read(start, len(seen)) == seen
        self._take(now, anew=not is_same)
        if not is_same:
            return Change.ANEW
        if self.size < before:
            self._take(now, anew=True)
            return Change.REWOUND
        return Change.GROWN if self.size > before else Change.SAME

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
        self._take(info, anew=True)
        self.trouble = ""
        return True

    def _take(self, info: os.stat_result, *, anew: bool) -> None:
        """Record the sizes and the last bytes, so growth can be distinguished from a replacement of equal length."""
        self.size = self.full_size = info.st_size
        self.written_t = info.st_mtime
        if self._limit is not None:
            self.size = min(self.size, self._limit)
        if anew:
            self.generation += 1
            self.newlines = Counts()
        start = max(self.size - MARK_BYTES, 0)
        self._mark = (start, self.read(start, self.size - start))

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`. Returns b"" past the end of the file or on a disk error."""
        if self._fd < 0 or size <= 0:
            return b""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            self.trouble = error.strerror or "cannot be read"
            return b""

    # -- places ------------------------------------------------------------------------------------------

    def next_start(self, offset: int) -> int:
        """Return the offset after the first newline at or after `offset`, or -1 if no newline follows."""
        at = offset
        while data := self.read(at, min(STRIDE_BYTES, self.size - at)):
            found = data.find(b"\n")
            if found >= 0:
                return at + found + 1
            at += len(data)
        return -1

    def line_start(self, offset: int) -> int:
        """Return the offset where the line containing the byte at `offset` starts."""
        at = min(offset, self.full_size)
        while at > 0:
            start = max(at - STRIDE_BYTES, 0)
            found = self.read(start, at - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
        return 0

    def number_at(self, offset: int) -> int | None:
        """Return the 0-based number of the line starting at `offset`, or None if lines have not been counted that far."""
        chunk = offset // CHUNK_BYTES
        if chunk > self.newlines.chunks:
            return None
        start = chunk * CHUNK_BYTES
        return self.newlines.before(chunk) + self.read(start, offset - start).count(b"\n")

    def offset_of(self, number: int) -> int | None:
        """Return the offset of line `number` (from 0), or None if the file is shorter or has not been counted that far."""
        if number <= 0:
            return 0
        chunk = self.newlines.chunk_of(number - 1)  # at the end of counting, less than a chunk is uncounted
        start = chunk * CHUNK_BYTES
        data = self.read(start, min(CHUNK_BYTES, self.size - start))
        place = -1
        for _ in range(number - self.newlines.before(chunk)):
            place = data.find(b"\n", place + 1)
            if place < 0:
                return None
        return start + place + 1 if start + place + 1 < self.size else None

    def count(self) -> bool:
        """Count the newlines in the next chunk. Return False once every full chunk has been counted."""
        start = self.newlines.chunks * CHUNK_BYTES
        if start + CHUNK_BYTES > self.size:
            return False
        self.newlines.append(self.read(start, CHUNK_BYTES).count(b"\n"))
        return True

    @property
    def counted_bytes(self) -> int:
        """The number of bytes counted so far. A partial last chunk is included, because it is counted on demand."""
        counted = self.newlines.chunks * CHUNK_BYTES
        return self.size if self.size - counted < CHUNK_BYTES else counted

    @property
    def line_count(self) -> int | None:
        """The number of lines, including a partial last line, or None if they have not all been counted."""
        total = self.number_at(self.size) if self.counted_bytes == self.size else None
        is_open = self.size > 0 and self.read(self.size - 1, 1) != b"\n"
        return total + is_open if total is not None else None

    # -- lines -------------------------------------------------------------------------------------------

    def chunk_lines(self, chunk: int) -> tuple[int, bytes]:
        """Return the offset of the first line that starts in `chunk`, and the bytes of all such lines. Overlong lines are cut."""
        start = chunk * CHUNK_BYTES
        stop = min(start + CHUNK_BYTES, self.size)
        base = max(start - 1, 0)
        data = self.read(base, stop - base)
        first = 0 if start == 0 else data.find(b"\n") + 1
        if start and not first:
            return stop, b""
        if data[first:] and not data.endswith(b"\n"):
            end = self.next_start(stop)
            stop = self.size if end < 0 else end
            data += self.read(base + len(data), min(stop - base - len(data), CHUNK_BYTES))
        return base + first, data[first:]

    def forward(self, offset: int) -> Iterator[TextLine]:
        """Yield the lines that start at or after `offset`."""
        at = self.next_start(offset - 1) if offset else 0
        while 0 <= at < self.size:
            data = self.read(at, min(BLOCK_BYTES, self.size - at))
            *whole, _ = data.split(b"\n")
            for raw in whole:
                yield TextLine(at, at + len(raw) + 1, clean(raw))
                at += len(raw) + 1
            if not whole:
                line = self._long_line(at)
                yield line
                at = line.end

    def backward(self, offset: int) -> Iterator[TextLine]:
        """Yield the lines that start before `offset`, nearest first."""
        at = min(offset, self.size)
        if at and self.read(at - 1, 1) != b"\n":
            at = self.line_start(at)
            yield self._long_line(at)
        while at > 0:
            start = max(at - BLOCK_BYTES, 0)
            data = self.read(start, at - start)
            if len(data) < at - start:
                return  # the file was truncated since the last check
            first = 0 if start == 0 else data.find(b"\n", 0, len(data) - 1) + 1
            if start and not first:
                at = self.line_start(at - 1)
                yield self._long_line(at)
                continue
            for raw in reversed(data[first:-1].split(b"\n")):
                yield TextLine(at - len(raw) - 1, at, clean(raw))
                at -= len(raw) + 1

    def _long_line(self, offset: int) -> TextLine:
        """Return the line that starts at `offset`, however long it is."""
        end = self.next_start(offset)
        stop = end - 1
        if end < 0:
            stop = end = self.size
        if stop - offset <= WHOLE_LINE_BYTES:
            return TextLine(offset, end, clean(self.read(offset, stop - offset)))
        tail = self.read(stop - LINE_CAP_BYTES, LINE_CAP_BYTES)
        state = tail.find(b"\r")
        if 0 <= state < len(tail.rstrip(b"\r \n")):
            return TextLine(offset, end, clean(tail[state + 1 :]))
        text = clean(self.read(offset, LINE_CAP_BYTES).partition(b"\r")[0])
        return TextLine(offset, end, text.removesuffix(CAP_MARK) + CAP_MARK)
