"""Records when each byte of a log arrived. The keeper's tailer writes this index for each attempt, next to the logs.

``arrivals.jsonl`` has one line for each batch that the tailer read: the log's path within the attempt's folder, the end of the
batch, and the times of the two checks between which it was written. Views use the index to order lines from several logs.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import BinaryIO

import msgspec

from supervisor.run.jsonl import decoded
from supervisor.run.paths import AttemptPaths, private, replace_file
from supervisor.run.regular import open_regular

# A log with more batches merges its older ones, so that a day of output takes only a page of memory.
MOST_BATCHES = 1024
NEWEST_BATCHES = 256
# An index that has grown this much is rewritten without the merged batches.
REWRITE_BYTES = 8 << 20
READ_BYTES = 64 << 20


class Arrival(msgspec.Struct, frozen=True):
    """Bytes of `log`, up to the offset `end`, that were written between `since` and `t` (wall-clock seconds)."""

    log: str
    end: int
    since: float
    t: float


_DECODER = msgspec.json.Decoder(Arrival)


class Arrivals:
    """The batches of one log, in order. One thread adds batches; any thread may read them."""

    def __init__(self) -> None:
        self.batches: list[Arrival] = []

    @property
    def end(self) -> int:
        """The number of bytes whose arrival time is known."""
        return self.batches[-1].end if self.batches else 0

    def add(self, batch: Arrival) -> bool:
        """Append a batch unless its bytes are already covered. Return whether it was appended."""
        last = self.batches[-1] if self.batches else None
        if batch.end <= self.end or not batch.since <= batch.t or (last is not None and batch.t < last.t):
            return False
        if last is not None and batch.since < last.t:
            batch = msgspec.structs.replace(batch, since=last.t)
        self.batches.append(batch)
        if len(self.batches) > MOST_BATCHES:
            self.batches = [*_merged(self.batches[:-NEWEST_BATCHES]), *self.batches[-NEWEST_BATCHES:]]
        return True

    def time_of(self, offset: int) -> float:
        """Return when all bytes before `offset` had arrived, assuming that each batch arrived at a steady rate."""
        batches = self.batches
        at = min(bisect_left(batches, offset, key=attrgetter("end")), len(batches) - 1)
        batch, begin = batches[at], batches[at - 1].end if at else 0
        share = min(max((offset - begin) / (batch.end - begin), 0.0), 1.0)
        return batch.since + (batch.t - batch.since) * share

    def offset_at(self, t: float) -> int:
        """Return how many bytes had arrived by `t`."""
        batches = self.batches
        at = bisect_right(batches, t, key=attrgetter("t"))
        begin = batches[at - 1].end if at else 0
        if at == len(batches) or t <= batches[at].since:
            return begin
        batch = batches[at]
        return begin + int((batch.end - begin) * (t - batch.since) / (batch.t - batch.since))


def _merged(batches: list[Arrival]) -> Iterator[Arrival]:
    """Merge each pair of neighboring batches into one."""
    for at in range(0, len(batches), 2):
        first, last = batches[at], batches[min(at + 1, len(batches) - 1)]
        yield msgspec.structs.replace(last, since=first.since)


class ArrivalReader:
    """Follows an attempt's arrival index. `logs` is keyed by absolute path."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self.logs: dict[str, Arrivals] = {}
        self._root = attempt.root
        self._path = attempt.arrivals
        self._opened: BinaryIO | None = None  # kept open, so that no other file gets its inode
        self._offset = 0

    def refresh(self) -> bool:
        """Read new batches. Return whether there were any."""
        try:
            named = os.stat(self._path)
            if self._opened is None or os.fstat(self._opened.fileno()).st_ino != named.st_ino:
                self.close()
                self._opened = open_regular(self._path)
                self._offset = 0
                self.logs.clear()
            if named.st_size <= self._offset:
                return False
            data = os.pread(self._opened.fileno(), READ_BYTES, self._offset)
        except OSError:
            return False
        whole = data.rfind(b"\n") + 1
        for batch in decoded(_DECODER, data[:whole]):
            self.logs.setdefault(os.path.join(self._root, batch.log), Arrivals()).add(batch)
        self._offset += whole
        return whole > 0

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class ArrivalWriter:
    """Writes an attempt's arrival index, batch by batch. After a failed write, it writes nothing more."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self._path = attempt.arrivals
        self._size = 0
        self._fd = -1
        known = ArrivalReader(attempt)
        known.refresh()
        known.close()
        self._logs = {os.path.relpath(path, attempt.root): log for path, log in known.logs.items()}
        if not attempt.root.is_symlink():  # a link would be the job's
            self._open()

    def end_of(self, log: str) -> int:
        """Return how many bytes of a log the index covers."""
        return self._logs[log].end if log in self._logs else 0

    def note(self, log: str, end: int, since: float, t: float) -> None:
        """Record that `log` had `end` bytes at `t` and fewer at `since`."""
        batch = Arrival(log, end, since, t)
        if not self._logs.setdefault(log, Arrivals()).add(batch) or self._fd < 0:
            return
        try:
            self._size += os.write(self._fd, msgspec.json.encode(batch) + b"\n")
            if self._size > REWRITE_BYTES:
                batches = [msgspec.json.encode(each) for log_ in self._logs.values() for each in log_.batches]
                replace_file(self._path, b"\n".join([*batches, b""]))
                self.close()
                self._open()
        except OSError:
            self.close()

    def _open(self) -> None:
        self._size = 0
        with contextlib.suppress(OSError):
            self._fd = private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)

    def close(self) -> None:
        """Close the index."""
        fd, self._fd = self._fd, -1  # the tailer may still be writing its last batch
        if fd >= 0:
            os.close(fd)
