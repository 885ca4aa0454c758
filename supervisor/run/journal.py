"""The journal: an append-only file of facts, one JSON object a line, one writer.

The writer appends whole lines with a single write(2); the reader reads by offset, leaves a half last
line for the next call, and skips lines of kinds or schema versions it does not know (counting them),
so that an older viewer opens a newer run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from supervisor.run.events import Event
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


class JournalWriter:
    """Appends facts to one journal. Only the keeper that holds the lock may have one.

    Space behind the end of the file is its own, where the filesystem can reserve it (fallocate(2) with
    FALLOC_FL_KEEP_SIZE), so that a job that fills the disk does not take its facts away.

    A keeper that died mid-line left a half line: the writer ends it first, so that the next fact
    stands on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._encoder = msgspec.json.Encoder()
        self._torn = False
        size = os.fstat(self._fd).st_size
        if size:
            with open_regular(path) as existing:
                existing.seek(size - 1)
                self._torn = existing.read(1) != b"\n"
        self._begun, self._reserved = size, 0
        self._reserve()

    def append(self, event: Event, *, durable: bool = False) -> None:
        """Write one fact; with `durable` it is on disk when this returns.

        Raises:
            OSError: the disk is full or the file is gone: nothing of it was written, or the next line ends it first.
        """
        line = (b"\n" if self._torn else b"") + self._encoder.encode(event) + b"\n"
        self._reserve()
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError:
            self._torn = self._torn or bool(done)
            with contextlib.suppress(OSError):
                if done and self._size() == self._begun + done:  # nobody else's line stands behind it
                    os.ftruncate(self._fd, self._begun)
                    self._torn = False
            raise
        self._torn = False
        if durable:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file; further appends fail."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size())  # gives back what was reserved
            os.close(self._fd)
            self._fd = -1

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _reserve(self) -> None:
        """See that there is room behind the end, for this fact and for many more."""
        self._begun = self._size()
        if self._begun + RESERVED_BYTES // 2 <= self._reserved:
            return
        with contextlib.suppress(OSError, AttributeError):  # no Linux: facts of a full disk wait in memory
            place = ctypes.c_int64(self._begun), ctypes.c_int64(RESERVED_BYTES)
            if ctypes.CDLL(None).fallocate(self._fd, FALLOC_FL_KEEP_SIZE, *place) == 0:
                self._reserved = self._begun + RESERVED_BYTES


class JournalReader:
    """Reads facts as they are appended. Cheap to call often: nothing new costs one fstat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self._decoder = msgspec.json.Decoder(Event)
        self.skipped = 0
        self.restarted = False

    def read(self, *, limit_bytes: int = 1 << 24) -> list[Event]:
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
            try:
                yield self._decoder.decode(line)
            except NOT_DECODED:
                self.skipped += 1


class StateReader:
    """A journal folded as it grows: what every view holds."""

    def __init__(self, path: Path) -> None:
        self._reader = JournalReader(path)
        self.state = RunState()

    def refresh(self) -> list[Event]:
        """Fold what was appended since the last call; returns those facts."""
        news = self._reader.read()
        if self._reader.restarted:
            self.state = RunState()
        for event in news:
            self.state = fold(self.state, event)
        if self._reader.skipped != self.state.unknown_events:
            self.state = msgspec.structs.replace(self.state, unknown_events=self._reader.skipped)
        return news


def facts_in(path: Path) -> Iterator[Event]:
    """Every fact of a journal, from its start to its present end, however long it is."""
    reader = JournalReader(path)
    while news := reader.read():
        yield from news


def read_state(path: Path) -> RunState:
    """The state that a journal says, read once."""
    reader = StateReader(path)
    while reader.refresh():
        pass
    return reader.state
