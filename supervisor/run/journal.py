"""The journal: an append-only file of facts, one JSON object a line, one writer.

The writer appends whole lines with a single write(2); the reader reads by offset, leaves a half last
line for the next call, and skips lines of kinds or schema versions it does not know (counting them),
so that an older viewer opens a newer run. A line whose `v` is above ours makes the run read-only here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from supervisor.run.events import SCHEMA_VERSION, Event
from supervisor.run.fold import fold
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.regular import open_regular
from supervisor.run.state import RunState
from supervisor.text.redact import Redactor

T = TypeVar("T", bound=Event)


def without_secrets(event: T, redactor: Redactor) -> T:
    """The event as it may be written: the texts in it that came from outside are redacted."""
    data = msgspec.to_builtins(event)
    shown = redactor.data(data)
    return event if shown == data else msgspec.convert(shown, type(event))


FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
RESERVED_BYTES = 256 * 1024
"""Kept free for the journal behind its end: a run whose disk is full makes some hundred facts of 200 bytes an hour."""
MAX_LINE_BYTES = 1 << 24
"""Read at once of a journal; a line that is longer is none of ours."""


WAITS_FOR_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""After these the open file is as good as before: nothing is reopened."""
HEAD_BYTES = 512
_PROGRESS = b'{"kind":"progress",'
_EVENT = msgspec.json.Decoder(Event)
"""Of all readers: to make one takes longer than to read a short journal."""


class JournalWriter:
    """Appends facts to one journal. Only the keeper that holds the lock may have one.

    The file itself is locked too: somebody may have removed ``keeper.lock``, and a second writer must not get in.

    Space behind the end of the file is its own, where the filesystem can reserve it (fallocate(2) with
    FALLOC_FL_KEEP_SIZE), so that a job that fills the disk does not take its facts away.

    A keeper that died mid-line left a half line: the writer ends it first, so that the next fact
    stands on a line of its own.

    Raises:
        OSError: the journal cannot be written, or another process writes it (EWOULDBLOCK).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock()
        self._encoder = msgspec.json.Encoder()
        self._torn = self._is_torn()
        self._inode, self._head = os.fstat(self._fd).st_ino, _read_at(path, 0, HEAD_BYTES)
        self._reopens = self._closed = False
        self._doubtful = b""  # a line of which it is not known whether it came to stand behind `_begun`
        self._begun, self._reserved = self.size, 0
        self._reserve()

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._fd).st_size

    def append(self, event: Event, *, durable: bool = False) -> None:
        """Write one fact; with `durable` it is on disk when this returns.

        Raises:
            OSError: the disk is full, read-only or away, or the file is gone: nothing of it was written, or the next line
                ends it first. The next call opens the file again where that may help.
        """
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        if self._reopens:
            self._reopen()
        line = (b"\n" if self._torn else b"") + self._encoder.encode(event) + b"\n"
        done = 0
        try:
            self._reserve()
            while done < len(line):
                done += os.write(self._fd, line[done:])
            if durable:
                os.fdatasync(self._fd)
        except OSError as error:
            self._reopens = error.errno not in WAITS_FOR_SPACE
            self._take_back(line)
            raise
        self._torn = False
        if not self._head:
            self._head = line[:HEAD_BYTES]

    def close(self) -> None:
        """Close the file; further appends fail, and open nothing again."""
        self._closed = True
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)  # gives back what was reserved
            with contextlib.suppress(OSError):  # Linux closes it also where it reports an error
                os.close(self._fd)
            self._fd = -1

    def astray(self) -> str:
        """Where the file went whose name was deleted or moved away, in a few words; empty while it is where it was.

        Empty too while a file server does not answer: that is no deletion.
        """
        try:
            named = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            named = None
        except OSError:
            return ""
        try:
            mine = os.fstat(self._fd)
            if named is not None and named.st_ino == mine.st_ino:
                return ""
            where = os.readlink(f"/proc/self/fd/{self._fd}") if mine.st_nlink else ""
        except OSError:
            return "" if named is not None else "deleted"
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

    def _reopen(self) -> None:
        """Open the same file again: a file server that was restarted knows no descriptor of before (ESTALE).

        Raises:
            OSError: it is not there, or another file is in its place.
        """
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)  # never made again somewhere else
        try:
            same = (
                os.fstat(fd).st_ino == self._inode and _read_at(self._path, 0, len(self._head)) == self._head
            )
        except OSError:
            os.close(fd)
            raise
        if not same:
            os.close(fd)
            raise OSError(errno.ESTALE, "another file is in the place of the journal", str(self._path))
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)  # and with it the lock, which the new descriptor would wait for
        self._fd = fd
        self._lock()
        behind = _read_at(self._path, self._begun, len(self._doubtful) + 1) if self._doubtful else b""
        if behind and self._doubtful.startswith(behind):
            os.ftruncate(self._fd, self._begun)  # our own line, whole or in part: it is written again
        self._doubtful, self._reopens, self._reserved = b"", False, 0
        self._torn = self._is_torn()

    def _take_back(self, line: bytes) -> None:
        """Remove what arrived of a line that failed, where nobody else's stands behind it."""
        self._torn, self._doubtful = True, line
        with contextlib.suppress(OSError):
            if self.size > self._begun:
                if not line.startswith(_read_at(self._path, self._begun, len(line) + 1)):
                    return
                os.ftruncate(self._fd, self._begun)
            self._torn, self._doubtful = line.startswith(b"\n"), b""

    def _reserve(self) -> None:
        """See that there is room behind the end, for this fact and for many more."""
        self._begun = self.size
        if self._begun + RESERVED_BYTES // 2 <= self._reserved:
            return
        with contextlib.suppress(OSError, AttributeError):  # no Linux: facts of a full disk wait in memory
            place = ctypes.c_int64(self._begun), ctypes.c_int64(RESERVED_BYTES)
            if ctypes.CDLL(None).fallocate(self._fd, FALLOC_FL_KEEP_SIZE, *place) == 0:
                self._reserved = self._begun + RESERVED_BYTES


def _read_at(path: Path, offset: int, most: int) -> bytes:
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(most)


class JournalReader:
    """Reads facts as they are appended. Cheap to call often: nothing new costs one fstat."""

    def __init__(self, path: Path, *, skips_progress: bool = False) -> None:
        """`skips_progress`: of events of progress in a row, nearly all of a long journal, decode the first alone."""
        self._path = path
        self._skips_progress = skips_progress
        self._in_progress = False
        self._offset = 0
        self._inode = 0
        self.skipped = 0
        self.newest_version = SCHEMA_VERSION
        self.restarted = False

    @property
    def offset(self) -> int:
        """How many bytes are read."""
        return self._offset

    def read(self, *, limit_bytes: int = MAX_LINE_BYTES) -> list[Event]:
        """Facts appended since the last call; [] when there are none or the file is missing.

        When the file was replaced or cut, `restarted` becomes True and reading starts over: the
        caller folds from an empty state.
        """
        try:
            with open_regular(self._path) as file:
                info = os.fstat(file.fileno())
                if info.st_ino != self._inode or info.st_size < self._offset:
                    self.restarted = self._inode != 0
                    self._inode, self._offset, self.skipped = info.st_ino, 0, 0
                    self.newest_version = SCHEMA_VERSION
                else:
                    self.restarted = False
                if info.st_size == self._offset:
                    return []
                file.seek(self._offset)
                data = file.read(limit_bytes)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) >= limit_bytes:
            end = len(data)  # no fact is that long: skip it rather than stop for ever
        self._offset += end
        return list(self._decode(data[:end]))

    def _decode(self, data: bytes) -> Iterator[Event]:
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            if self._skips_progress:
                was, self._in_progress = self._in_progress, line.startswith(_PROGRESS)
                if was and self._in_progress:
                    continue
            try:
                event = _EVENT.decode(line)
            except NOT_DECODED:
                self.skipped += 1
                self.newest_version = max(self.newest_version, _version_of(line))
                continue
            if event.v > SCHEMA_VERSION:  # a known kind that means something else by now
                self.skipped += 1
                self.newest_version = max(self.newest_version, event.v)
                continue
            yield event


class StateReader:
    """A journal folded as it grows: what every view holds."""

    def __init__(self, path: Path, *, skips_progress: bool = False) -> None:
        self._reader = JournalReader(path, skips_progress=skips_progress)
        self.state = RunState()

    @property
    def offset(self) -> int:
        """How many bytes of the journal are read."""
        return self._reader.offset

    def refresh(self, *, limit_bytes: int = MAX_LINE_BYTES) -> list[Event]:
        """Fold what was appended since the last call, at most so many bytes; returns those facts."""
        news = self._reader.read(limit_bytes=limit_bytes)
        if self._reader.restarted:
            self.state = RunState()
        for event in news:
            self.state = fold(self.state, event)
        if self._reader.skipped != self.state.unknown_events:
            newer = self._reader.newest_version if self._reader.newest_version > SCHEMA_VERSION else None
            self.state = msgspec.structs.replace(
                self.state, unknown_events=self._reader.skipped, newer_version=newer
            )
        return news


class _Versioned(msgspec.Struct, frozen=True):
    v: int = SCHEMA_VERSION


_VERSION = msgspec.json.Decoder(_Versioned)


def _version_of(line: bytes) -> int:
    """The schema version of a line that is no event here; ours where it says none."""
    try:
        return _VERSION.decode(line).v
    except NOT_DECODED:
        return SCHEMA_VERSION


def newest_version(path: Path) -> int:
    """The highest schema version among a journal's events: a look at the lines that name one, some 0.3 s for 100 MB."""
    newest = SCHEMA_VERSION
    with contextlib.suppress(OSError), open_regular(path) as file:
        lines = iter(
            lambda: file.readline(MAX_LINE_BYTES), b""
        )  # one without an end, of a hostile journal, fills no memory
        newest = max((_version_of(line) for line in lines if b'"v":' in line), default=newest)
    return max(newest, SCHEMA_VERSION)


def facts_in(path: Path) -> Iterator[Event]:
    """Every fact of a journal, from its start to its present end, however long it is."""
    reader = JournalReader(path)
    while news := reader.read():
        yield from news


def read_state(path: Path, *, skips_progress: bool = False) -> RunState:
    """The state that a journal says, read once. `skips_progress`: see `JournalReader`."""
    reader = StateReader(path, skips_progress=skips_progress)
    while reader.refresh():
        pass
    return reader.state
