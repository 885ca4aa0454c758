"""The journal: an append-only file of events, one JSON object per line, with a single writer.

The writer appends whole lines with a single write(2). The reader reads by offset and leaves an incomplete line for the
next call. It skips and counts lines of unknown kinds or schema versions, so an older viewer can open a newer run. A
line whose `v` is newer than this version makes the run read-only.

Next to a journal is a snapshot: the state after a prefix of the journal, from which a reader can continue. It only
saves time. If it is damaged, or was folded by a different version or from other bytes, the reader ignores it and reads
the journal from the start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO, TypeVar, Union

import msgspec

from supervisor import __version__
from supervisor.run import events, records, state, timeline
from supervisor.run import fold as folding
from supervisor.run.events import SCHEMA_VERSION, Event
from supervisor.run.fold import replay
from supervisor.run.jsonl import NOT_DECODED, bounded, decoded_file
from supervisor.run.paths import NodePaths, private, replace_file
from supervisor.run.regular import open_regular, read_regular
from supervisor.run.state import RunState
from supervisor.text.redact import Redactor

T = TypeVar("T", bound=Event)


def without_secrets(event: T, redactor: Redactor) -> T:
    """Return the event with secrets removed from its text, just as it is written."""
    data = msgspec.to_builtins(event)
    shown = redactor.data(data)
    return event if shown == data else msgspec.convert(shown, type(event))


FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
RESERVED_BYTES = 256 * 1024
"""Space reserved past the end of the journal. On a full disk, a run writes about a hundred events of 200 bytes an hour."""
MAX_LINE_BYTES = 1 << 24
"""The most to read from a journal at once. stoker never writes a line longer than this."""


WAITS_FOR_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""After these errors the open file still works, so it is not reopened."""
SNAPSHOT_EVERY = 1 << 20
"""Folding the part after a snapshot takes at most 50 ms, which a list of many runs can afford."""
MOST_SNAPSHOT_BYTES = 16 << 20
SEALED_BYTES = 1 << 16
TAIL_BYTES = 4 << 20
"""Reading this much takes 0.3 s. It is also how much of a long journal is printed when a run is followed line by line."""
_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Union[events.KINDS])  # noqa: UP007 - made of what there is
"""Shared by all readers, because creating a decoder takes longer than reading a short journal."""


class JournalWriter:
    """Appends events to one journal. Only the keeper that holds the lock may have one.

    The file itself is locked too, so there is no second writer even if ``keeper.lock`` was removed.

    Where the filesystem supports it (fallocate(2) with FALLOC_FL_KEEP_SIZE), space is reserved past the end of the file, so
    a job that fills the disk does not stop the journal.

    A keeper that died in the middle of a line leaves half of it behind. The writer terminates that line first.

    Attributes:
        inode: the file's inode, even if its name now refers to another file.

    Raises:
        OSError: the journal cannot be written, or another process is writing to it (EWOULDBLOCK).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lock()
        self._encoder = msgspec.json.Encoder()
        self._torn = self._is_torn()
        self.inode = os.fstat(self._fd).st_ino
        self._reopens = self._closed = False
        self._failed = b""  # a line that was written to an unknown extent after `_begun`
        self._begun, self._reserved = self.size, 0
        self._reserve()

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def append(self, event: Event, *, durable: bool = False) -> None:
        """Write one event. If `durable` is true, it is on disk when this returns.

        Raises:
            OSError: the disk is full, read-only or unreachable, or the file is gone. The next call removes
                any partially written event, and reopens the file if that may help.
        """
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        if self._failed:
            self._recover()
        line = (b"\n" if self._torn else b"") + self._encoder.encode(event) + b"\n"
        done = 0
        try:
            self._reserve()
            while done < len(line):
                done += os.write(self._fd, line[done:])
            if durable:
                os.fdatasync(self._fd)
        except OSError as error:
            self._reopens, self._failed = error.errno not in WAITS_FOR_SPACE, line
            raise
        self._torn = False

    def close(self) -> None:
        """Close the file. Further appends fail."""
        self._closed = True
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)  # releases the reserved space
            with contextlib.suppress(OSError):  # Linux closes it even if it reports an error
                os.close(self._fd)
            self._fd = -1

    def astray(self) -> str:
        """Describe in a few words how the journal was deleted or moved away, or return "" if it was not.

        Return "" while a file server is not responding, because silence does not mean deletion.
        """
        try:
            if os.stat(self._path).st_ino == os.fstat(self._fd).st_ino:
                return ""
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return ""
        try:
            where = os.readlink(f"/proc/self/fd/{self._fd}") if os.fstat(self._fd).st_nlink else ""
        except OSError:
            where = ""
        return f"moved to {os.path.dirname(where)}" if where else "deleted"

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            self._fd = -1
            raise BlockingIOError(
                errno.EWOULDBLOCK, "another process writes this journal", str(self._path)
            ) from None
        except OSError:
            return  # a filesystem without locks

    def _is_torn(self) -> bool:
        size = self.size
        return size > 0 and _read_at(self._path, size - 1, 1) != b"\n"

    def _recover(self) -> None:
        """Reopen the file after a failed write if that may help, and remove any part of the line that was written.

        Raises:
            OSError: the file is missing, or another file has taken its place.
        """
        if self._reopens:
            self._reopen()
        behind = _read_at(self._path, self._begun, len(self._failed) + 1)
        if behind and self._failed.startswith(behind):
            os.ftruncate(self._fd, self._begun)  # the writer's own line, whole or in part, to be rewritten
        self._failed, self._reserved = b"", 0
        self._torn = self._is_torn()

    def _reopen(self) -> None:
        """Reopen the same file, because a restarted file server does not recognize old descriptors (ESTALE)."""
        fd = private(self._path, os.O_WRONLY | os.O_APPEND)  # never create it elsewhere
        if os.fstat(fd).st_ino != self.inode:
            os.close(fd)
            raise OSError(errno.ESTALE, "another file is in the place of the journal", str(self._path))
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)  # releases the lock, for which the new descriptor would wait
        self._fd = fd
        self._lock()

    def _reserve(self) -> None:
        """Reserve space for this event and many more."""
        self._begun = self.size
        if self._begun + RESERVED_BYTES // 2 <= self._reserved:
            return
        with contextlib.suppress(OSError, AttributeError):  # not Linux: on a full disk events wait in memory
            place = ctypes.c_int64(self._begun), ctypes.c_int64(RESERVED_BYTES)
            if ctypes.CDLL(None).fallocate(self._fd, FALLOC_FL_KEEP_SIZE, *place) == 0:
                self._reserved = self._begun + RESERVED_BYTES


def _read_at(path: Path, offset: int, most: int) -> bytes:
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(most)


class JournalReader:
    """Reads events as they are appended. Cheap to poll: when nothing is new, a call costs one fstat."""

    def __init__(self, path: Path, start: Callable[[BinaryIO], int] = lambda _: 0) -> None:
        """`start` returns the offset from which to read a new or replaced journal."""
        self._path = path
        self._start = start
        self._offset = 0
        self._inode = 0
        self.skipped = 0
        self.newest_version = SCHEMA_VERSION

    @property
    def offset(self) -> int:
        """The number of bytes read so far."""
        return self._offset

    def read(self, *, limit_bytes: int = MAX_LINE_BYTES) -> list[Event]:
        """Return the events appended since the last call, or [] if there are none or the file is missing.

        If the file was replaced or truncated, start over.
        """
        try:
            with open_regular(self._path) as file:
                info = os.fstat(file.fileno())
                if info.st_ino != self._inode or info.st_size < self._offset:
                    self._inode, self._offset, self.skipped = info.st_ino, 0, 0
                    self.newest_version = SCHEMA_VERSION
                    self._offset = self._start(file)
                if info.st_size <= self._offset:
                    return []
                file.seek(self._offset)
                data = file.read(min(limit_bytes, info.st_size - self._offset))  # a larger buffer costs 33 µs
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) >= limit_bytes:
            end = len(data)  # no event is that long: skip it instead of stopping forever
        self._offset += end
        return list(self.decode(data[:end]))

    def decode(self, data: bytes) -> Iterator[Event]:
        """Yield the events in complete lines. Lines that are not events are counted."""
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                event = bounded(_EVENT.decode(line))
            except NOT_DECODED:
                self.skipped += 1
                self.newest_version = max(self.newest_version, _version_of(line))
                continue
            if event.v > SCHEMA_VERSION:  # a known kind with a newer meaning
                self.skipped += 1
                self.newest_version = max(self.newest_version, event.v)
                continue
            yield event


class _Snapshot(msgspec.Struct, frozen=True):
    """The state after the first `offset` bytes of a journal. `seal` is a checksum of those bytes, `code` the version that folded them."""

    code: str
    offset: int
    seal: int
    state: RunState


def write_snapshot(path: Path, state: RunState, *, inode: int, offset: int) -> None:
    """Write `state`, the fold of a journal's first `offset` bytes, next to the journal. Only its writer may do so.

    Raises:
        OSError: the snapshot cannot be written, or `path` no longer has `inode`. An older snapshot stays.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_ino != inode:
            raise OSError(errno.ESTALE, "another file is in the place of the journal", str(path))
        os.fdatasync(file.fileno())  # no snapshot of bytes that a machine crash could lose
        data = msgspec.json.encode(_Snapshot(folded_by(), offset, _seal(file, offset), state))
    if len(data) <= MOST_SNAPSHOT_BYTES:
        replace_file(NodePaths(path.parent).snapshot, data)


@cache
def folded_by() -> str:
    """Return this version and a checksum of the modules that build a state. Two checkouts of one version may fold differently."""
    checksum = 0
    with contextlib.suppress(OSError):
        for module in (events, folding, records, state, timeline):
            checksum = zlib.crc32(read_regular(str(module.__file__)), checksum)
    return f"{__version__} {checksum:08x}"


def _seal(file: BinaryIO, offset: int) -> int:
    """Return a checksum of a journal's first bytes and the bytes just before `offset`. Reading all 150 MB would take 0.3 s."""
    checksum = 0
    for start in (0, max(offset - SEALED_BYTES, 0)):
        file.seek(start)
        checksum = zlib.crc32(file.read(min(SEALED_BYTES, offset - start)), checksum)
    return checksum


class StateReader:
    """A journal that is folded as it grows. Every view has one.

    If `tail_first`, a long journal without a snapshot is folded in pieces of `TAIL_BYTES`, one per `refresh`. Until that
    is done, `state` has only the run's identity and `journal_read`, and only the last piece's events are returned.

    Attributes:
        state: the fold of the events read so far.
        left_out: the size of the journal's prefix whose events no `refresh` returns (counted with `tail_first`).
    """

    def __init__(self, path: Path, *, tail_first: bool = False) -> None:
        self._path, self._tail_first = path, tail_first
        self._reader = JournalReader(path, self._begin)
        self.state = self._folded = RunState()
        self.left_out = self._behind_to = 0
        self._tail: list[Event] = []

    @property
    def offset(self) -> int:
        """The number of journal bytes read so far."""
        return self._reader.offset

    def refresh(self, *, limit_bytes: int = MAX_LINE_BYTES) -> list[Event]:
        """Fold what was appended since the last call, up to `limit_bytes`, and return the new events.

        If `tail_first` is true, the first call on a journal with a snapshot also returns the last events before it.
        """
        most, began = TAIL_BYTES if self._tail_first else limit_bytes, self._reader.offset
        news = self._reader.read(limit_bytes=min(limit_bytes, most))
        self._folded = replay(news, self._folded)
        if self._reader.skipped != self._folded.unknown_events:
            newer = self._reader.newest_version if self._reader.newest_version > SCHEMA_VERSION else None
            self._folded = msgspec.structs.replace(
                self._folded, unknown_events=self._reader.skipped, newer_version=newer
            )
        if self._reader.offset < self._behind_to:
            known = {
                name: getattr(self._folded, name) for name in ("run_id", "name", "mode", "host", "source")
            }
            self.state = RunState(**known, journal_read=(self._reader.offset, self._behind_to))
            return []
        if self._behind_to:
            self._behind_to, self.left_out = 0, began
        self.state = self._folded
        tail, self._tail = self._tail, []
        return [*tail, *news]

    def _begin(self, file: BinaryIO) -> int:
        """Return the offset from which to read an unread or replaced journal."""
        self.state = self._folded = RunState()
        self.left_out = self._behind_to = 0
        size = os.fstat(file.fileno()).st_size
        if self._tail_first and size <= TAIL_BYTES:
            return 0
        offset = self._from_snapshot(file, size)
        if self._tail_first and offset:
            self.left_out = max(offset - TAIL_BYTES, 0)
            file.seek(self.left_out)
            data = file.read(offset - self.left_out)
            start = data.find(b"\n") + 1 if self.left_out else 0
            self._tail = list(JournalReader(self._path).decode(data[start:]))
        elif self._tail_first:
            self._behind_to = size - TAIL_BYTES // 2  # pieces end at whole lines
        return offset

    def _from_snapshot(self, file: BinaryIO, size: int) -> int:
        """Return how many bytes of the journal a valid snapshot covers, or 0 if there is none."""
        path = NodePaths(self._path.parent).snapshot
        known = decoded_file(path, _Snapshot, MOST_SNAPSHOT_BYTES)
        if known is None or known.code != folded_by() or not 0 < known.offset <= size:
            return 0
        # A journal that changed without growing was edited.
        is_edited = known.offset == size and os.fstat(file.fileno()).st_mtime_ns > os.stat(path).st_mtime_ns
        if is_edited or known.seal != _seal(file, known.offset):
            return 0
        self._folded, self._reader.skipped = known.state, known.state.unknown_events
        self._reader.newest_version = known.state.newer_version or SCHEMA_VERSION
        return known.offset


class _Versioned(msgspec.Struct, frozen=True):
    v: int = SCHEMA_VERSION


_VERSION = msgspec.json.Decoder(_Versioned)


def _version_of(line: bytes) -> int:
    """Return the schema version of a line that is not a known event, or the current version if the line has none."""
    try:
        return bounded(_VERSION.decode(line)).v
    except NOT_DECODED:
        return SCHEMA_VERSION


def facts_in(path: Path) -> Iterator[Event]:
    """Yield every event in a journal, from its start to its current end."""
    reader = JournalReader(path)
    while news := reader.read():
        yield from news


def read_state(path: Path) -> RunState:
    """Read a journal once and return its state."""
    reader = StateReader(path)
    while reader.refresh():
        pass
    return reader.state
