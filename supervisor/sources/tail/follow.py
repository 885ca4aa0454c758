"""Follows one growing file by offset, in whole lines, through truncation and rotation.

A file counts as the same if (device, inode) and the bytes just before the offset are unchanged. Those bytes
reveal a file that was truncated and has since grown past the old offset. Bytes written between the last
check and a truncation (logrotate's copytruncate), at most a quarter second's worth, are lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple

from supervisor.text.lines import Line, LineSplitter

_MARK_BYTES = 64
_PROGRESS_CAP_BYTES = 1 << 16
# A rotated log's writer may keep writing to the old file until it notices the new one. Leave the old file
# when the new one has content, or after this long without a byte.
_LINGER_S = 2.0
# A line that was redrawn with carriage returns and has been still for this long is handed on. Any other open line waits for its newline.
REDRAWN_S: Final = 0.2


class NoteCode(StrEnum):
    """Events on a followed log."""

    TRUNCATED = "truncated"  # read again from the start
    ROTATED = "rotated"  # another file now has the name
    GONE = "gone"  # removed; further output of its writer is still read
    UNREADABLE = "unreadable"  # exists, but cannot be read
    FAILED = "failed"  # the consumer of the lines raised an exception


@dataclass(frozen=True, slots=True)
class TailNote:
    """An event on a followed log. `text` is a single line that is safe to display."""

    key: str
    code: NoteCode
    text: str


# The end of a tqdm bar, which proves that the whole bar was read: "| 12/30 [00:01<00:02, 9.1it/s, loss=0.3]".
_WHOLE_STATE: Final = re.compile(rb"\d/\d+ \[[\d:]+<[\d:?]+, [^\[\]]*\] *$")
_STATE_BYTES: Final = 512


class Batch(NamedTuple):
    """One read of one log.

    `data` holds the raw bytes from byte `offset` of generation `generation`. Each time the file is truncated or
    replaced, the generation goes up and offsets and line numbers start over. `lines` are the lines that these
    bytes completed; their `text` is safe to display. `drawn` holds the complete states of lines redrawn with
    carriage returns (tqdm), each once, in order, at its own byte. For a line with no newline yet, all
    states are included; for completed `lines`, all states but the last, which is the line's text.
    """

    key: str
    generation: int
    offset: int
    data: bytes
    lines: tuple[Line, ...] = ()
    drawn: tuple[Line, ...] = ()

    def in_order(self) -> list[Line]:
        """Return the lines, each preceded by its drawn states. Long lines are cut, so it is unknown where they end."""
        behind = self.offset + len(self.data)
        states = [((state.number, state.offset), state) for state in self.drawn]
        lines = [((line.number, behind), line) for line in self.lines]
        return [line for _, line in sorted((*states, *lines), key=itemgetter(0))]


class LineFeed:
    """Turns a stream's bytes into batches, independently of files."""

    __slots__ = ("_open", "_shown", "_splitter", "generation", "key", "offset")

    def __init__(self, key: str, offset: int = 0, number: int = 1) -> None:
        self.key = key
        self.generation = 0
        self.offset = offset
        self._splitter = LineSplitter(offset, number)
        self._open = b""  # the line without a newline so far, minus states overwritten by a carriage return
        self._shown = b""

    def feed(self, data: bytes) -> Batch:
        """Process the next bytes of the stream."""
        start = self.offset
        self.offset = start + len(data)
        lines = tuple(self._splitter.feed(data))
        if b"\r" not in data and b"\r" not in self._open:
            _, newline, rest = data.rpartition(b"\n")
            self._open = (rest if newline else self._open + rest)[-_PROGRESS_CAP_BYTES:]
            return Batch(self.key, self.generation, start, data, lines)
        return Batch(self.key, self.generation, start, data, lines, tuple(self._states(data, start, lines)))

    def quiet(self) -> Batch | None:
        """Treat the last drawn state as complete and return it, because nothing has been written for a while."""
        drawn = self._open.lstrip(b"\r")
        state = drawn.rstrip(b"\r").rpartition(b"\r")[2]
        if b"\r" not in self._open or not state.strip() or state.strip() == self._shown:
            return None
        self._shown = state.strip()
        line = Line(self.offset - len(drawn), self._splitter.number, state)
        return Batch(self.key, self.generation, self.offset, b"", (), (line,))

    def finish(self) -> Batch | None:
        """Return the partial last line, if any, now that no more bytes will come."""
        line = self._splitter.finish()
        if line is None:
            return None
        # The splitter counted a newline that does not exist.
        self._splitter = LineSplitter(self.offset, self._splitter.number)
        self._open = self._shown = b""
        return Batch(self.key, self.generation, self.offset, b"", (line,))

    def restart(self) -> None:
        """Start over after the content was replaced."""
        self.generation += 1
        self.skip_to(0)

    def skip_to(self, offset: int) -> None:
        """Continue at `offset`, treating it as the start of line 1."""
        self.offset = offset
        self._splitter = LineSplitter(offset, 1)
        self._open = self._shown = b""

    def _states(self, data: bytes, start: int, lines: Sequence[Line]) -> Iterator[Line]:
        """Yield the states that these bytes completed. An incomplete state stays pending."""
        *closed, rest = (self._open + data).split(b"\n")
        offset = start - len(self._open)
        for text, line in zip(closed, lines, strict=True):
            yield from self._complete(text.rstrip(b"\r ").split(b"\r")[:-1], offset, line.number)
            offset += len(text) + 1
        # A carriage return at the very end may be the first half of a Windows newline.
        pending = rest.rfind(b"\r") + 1 if b"\r" in rest[:-1] else 0
        states = rest[:pending].split(b"\r")[:-1]
        if pending and _WHOLE_STATE.search(rest[max(pending, len(rest) - _STATE_BYTES) :]):
            states.append(rest[pending:])
        yield from self._complete(states, offset, self._splitter.number)
        self._open = b"\r" * bool(pending) + rest[pending:][-_PROGRESS_CAP_BYTES:]

    def _complete(self, states: Sequence[bytes], offset: int, number: int) -> Iterator[Line]:
        for state in states:
            if state.strip() and state.strip() != self._shown:
                self._shown = state.strip()
                yield Line(offset, number, state)
            offset += len(state) + 1


class FollowedFile:
    """Follows one path. Not thread-safe; the tail thread owns the object."""

    __slots__ = (
        "_changed_ns",
        "_fd",
        "_identity",
        "_last_byte",
        "_mark",
        "_note_to",
        "_quiet",
        "_reported",
        "_size",
        "feed",
        "path",
    )

    def __init__(
        self,
        path: str,
        key: str,
        *,
        offset: int = 0,
        number: int = 1,
        on_note: Callable[[TailNote], None],
    ) -> None:
        self.path = path
        self.feed = LineFeed(key, offset, number)
        self._note_to = on_note
        self._fd = -1
        self._identity = (0, 0)
        self._size = 0
        self._mark = b""
        self._changed_ns = -1
        self._reported: set[NoteCode] = set()
        self._last_byte = 0.0
        self._quiet = True

    @property
    def is_open(self) -> bool:
        """Whether the file was found."""
        return self._fd >= 0

    def is_idle(self) -> bool:
        """Check with a single stat(2) that there is nothing to read. Called for every file every quarter second."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return self._fd < 0
        except OSError:
            return False
        return (
            self._quiet
            and self._fd >= 0
            and now.st_size == self.feed.offset
            and now.st_mtime_ns == self._changed_ns
            and (now.st_dev, now.st_ino) == self._identity
        )

    def read(self, limit_bytes: int, *, final: bool = False) -> tuple[list[Batch], bool]:
        """Read up to `limit_bytes` more. Return the new data and whether more is waiting.

        If `final` is true, the writer is gone, so there is no need to wait for a rotated file.
        """
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            now = None
        except OSError as error:
            self._report(NoteCode.UNREADABLE, error.strerror or "cannot be read")
            now = None
        if self._fd < 0 and (now is None or not self._open(now)):
            return [], False
        batches, more = self._read_open(limit_bytes)
        if more:
            return batches, True
        if now is None:
            self._report(NoteCode.GONE, "removed; what is still written to it is read")
        elif (now.st_dev, now.st_ino) != self._identity:
            idle = time.monotonic() - self._last_byte > _LINGER_S
            if now.st_size > 0 or idle or final:
                self._rotate(now, batches)
                return batches, True
        return batches, False

    def backlog(self) -> tuple[int, int]:
        """Return how many bytes were read and the total. Any thread may call this, so the open file is not used: it may be closed.

        If the file was renamed or removed while being read, its size at the last check also counts.
        """
        read, seen, identity = self.feed.offset, self._size, self._identity
        try:
            now = os.stat(self.path)
        except OSError:
            return (read, seen) if self._fd >= 0 and read < seen else (0, 0)
        size = now.st_size if stat.S_ISREG(now.st_mode) else 0
        if self._fd >= 0 and (now.st_dev, now.st_ino) != identity:
            return min(read, seen), seen + size
        return min(read, size), size

    def end(self) -> tuple[int, int]:
        """Return the file's current end as a generation and an offset (see `is_past`)."""
        generation, is_open = self.feed.generation, self._fd >= 0
        try:
            now = os.stat(self.path)
            rotated = is_open and (now.st_dev, now.st_ino) != self._identity
        except OSError:
            if not is_open:
                return generation, 0
            now, rotated = os.fstat(self._fd), False
        return generation + rotated, now.st_size if stat.S_ISREG(now.st_mode) else 0

    def is_past(self, end: tuple[int, int], *, sure: bool = False) -> bool:
        """Check whether the file has been read up to `end`. After a truncation, assume that it has, unless `sure` is set."""
        generation, offset = end
        if self.feed.generation != generation:
            return self.feed.generation > generation and not sure
        return self.feed.offset >= offset

    def finish(self) -> list[Batch]:
        """Return the partial last line, if any."""
        batch = self.feed.finish()
        return [batch] if batch is not None else []

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, now: os.stat_result) -> bool:
        if not stat.S_ISREG(now.st_mode):
            self._report(NoteCode.UNREADABLE, "not a regular file")
            return False
        try:
            # O_NONBLOCK, because a pipe without a writer might have replaced the file between stat and open.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._report(NoteCode.UNREADABLE, error.strerror or "cannot be opened")
            return False
        self._reported -= {NoteCode.UNREADABLE, NoteCode.GONE}
        opened = os.fstat(self._fd)
        self._identity = (opened.st_dev, opened.st_ino)
        self._last_byte = time.monotonic()
        return True

    def _read_open(self, limit_bytes: int) -> tuple[list[Batch], bool]:
        now = os.fstat(self._fd)
        self._size = size = now.st_size
        batches: list[Batch] = []
        if size < self.feed.offset:
            self._restart(batches)
        elif size == self.feed.offset and (now.st_mtime_ns == self._changed_ns or self._is_same()):
            self._changed_ns = now.st_mtime_ns
            return self._idle(), False
        try:
            # Allocating and releasing hundreds of KiB for one line costs more than reading the line.
            size_bytes = min(limit_bytes, size - self.feed.offset) + len(self._mark)
            data = os.pread(self._fd, size_bytes, self.feed.offset - len(self._mark))
            if not data.startswith(self._mark):
                self._restart(batches)
                data = os.pread(self._fd, limit_bytes, self.feed.offset)
        except OSError as error:
            # ESTALE or EIO from a network filesystem. Try again at the next poll.
            self._report(NoteCode.UNREADABLE, error.strerror or "cannot be read")
            return batches, False
        fresh = data[len(self._mark) :]
        if not self._mark and fresh.startswith(b"\0") and self.feed.generation:
            fresh = data = self._skip_hole(limit_bytes)
            limit_bytes = 1
        if not fresh:
            return batches, self.feed.offset < size
        self._note_read(data)
        batches.append(self.feed.feed(fresh))
        return batches, len(fresh) >= limit_bytes

    def _is_same(self) -> bool:
        """Check whether the bytes before the offset are unchanged, since the length may match by coincidence."""
        try:
            return os.pread(self._fd, len(self._mark), self.feed.offset - len(self._mark)) == self._mark
        except OSError:
            return True

    def _note_read(self, data: bytes) -> None:
        if self._reported:
            self._reported.discard(NoteCode.UNREADABLE)
        self._mark = data[-_MARK_BYTES:]
        self._last_byte = time.monotonic()
        self._quiet = False

    def _skip_hole(self, limit_bytes: int) -> bytes:
        """Skip the run of zeros left when a writer without O_APPEND resumes at its old offset after copytruncate."""
        start = self.feed.offset
        with contextlib.suppress(OSError):
            start = os.lseek(self._fd, start, os.SEEK_DATA)
        data = os.pread(self._fd, limit_bytes, start)
        text = data.lstrip(b"\0")
        self.feed.skip_to(start + len(data) - len(text))
        return text

    def _idle(self) -> list[Batch]:
        """Handle a check that found nothing new. After `REDRAWN_S`, return the pending state of a redrawn line, if any."""
        if self._quiet or time.monotonic() - self._last_byte < REDRAWN_S:
            return []
        self._quiet = True
        batch = self.feed.quiet()
        return [batch] if batch is not None else []

    def _restart(self, batches: list[Batch]) -> None:
        batches += self.finish()
        self._report(NoteCode.TRUNCATED, "truncated; read again from its start", again=True)
        self.feed.restart()
        self._mark = b""

    def _rotate(self, now: os.stat_result, batches: list[Batch]) -> None:
        batches += self.finish()
        self.close()
        self._report(NoteCode.ROTATED, "another file took its place", again=True)
        self.feed.restart()
        self._mark = b""
        self._open(now)

    def _report(self, code: NoteCode, text: str, *, again: bool = False) -> None:
        if again or code not in self._reported:
            self._reported.add(code)
            self._note_to(TailNote(self.feed.key, code, f"{os.path.basename(self.path)}: {text}"))
