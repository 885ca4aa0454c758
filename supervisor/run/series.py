"""Samples: append-only JSON lines, one file per stream, with one-minute roll-ups alongside.

``series/<stream>.jsonl`` contains ``{"t": wall, "k": key, ...values}``, where `k` is what was measured
("0" for GPU 0 or rank 0, "job" for the run). ``series/<stream>.1m.jsonl`` contains, for each minute and key,
``{"t": minute, "k": key, "v": {name: [min, mean, max, count]}}``, so a seven-day run opens instantly.

When a file reaches `SEGMENT_BYTES`, it replaces ``<stream>.0.jsonl`` and a new file is started. This keeps the
latest 64 to 128 MiB of samples, and only the roll-ups of older ones. A run's samples take at most 1 GiB, however
long it runs (100 steps a second on 64 ranks would make 50 GB a day).

Streams: `metrics` (the run's step, loss, lr, ..., with the attempt as `a` and the rank as `r`),
`gpu` (util_ratio, memory_used_bytes, ...), `host` (cpu_ratio, rss_bytes, ... of a rank or the machine).
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from supervisor.run.jsonl import decoded
from supervisor.run.paths import make_own, private
from supervisor.run.regular import mark_of, open_regular

METRICS = "metrics"
GPU = "gpu"
HOST = "host"
RANKS = "ranks"
STREAMS = (METRICS, GPU, HOST, RANKS)
JOB_KEY = "job"
"""The key for samples of the whole job."""
MACHINE_KEY = "machine"
"""The key for the machine itself in the `host` stream."""
NET_RECEIVED, NET_SENT = "net_rx_bytes_per_s.", "net_tx_bytes_per_s."
"""In the machine's samples, the prefixes before the name of a network interface or RDMA port."""
# In samples of a log that was read after it was written: the timestamp of the line (in its clock's seconds), or null.
# `t` is then when the line was read, and tells nothing about how long anything took.
LINE_T = "line_t"
# In samples of a log that was read later and of which only some are kept: the sample's number among all.
READING = "reading"
CONTEXT = frozenset((LINE_T, READING))
"""Values that say where a sample was found and do not measure anything."""
ROLLUP_S = 60.0
SEGMENT_BYTES = 64 << 20
NEWEST_BYTES = 4 << 20
SKIM_BYTES = 8 << 10
_STALE = frozenset((errno.ESTALE, errno.EIO, errno.EBADF))
"""Errors that make a descriptor useless because the file server was restarted."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sample: `t` is in wall-clock seconds, `k` is what was measured, `a` the attempt, and `v` maps names to numbers.

    `odd` holds the words (nan, inf, -inf) for values that are not finite, which JSON cannot represent.
    """

    t: float
    k: str
    a: int
    v: dict[str, float | None]
    odd: dict[str, str] = msgspec.field(default_factory=dict)


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """One minute of one key, as a mapping from name to (min, mean, max, count)."""

    t: float
    k: str
    a: int
    v: dict[str, tuple[float, float, float, int]]


class SeriesWriter:
    """Appends samples to all streams. There is one writer per node."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._encoder = msgspec.json.Encoder()
        self._segment_bytes = segment_bytes
        self._fds: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._minutes: dict[tuple[str, str], _Minute] = {}

    def append(
        self, stream: str, t: float, key: str, attempt: int, values: Mapping[str, float | None]
    ) -> None:
        """Write one sample. NaN and infinities are written as null, with the word in `odd`, and left out of roll-ups.

        Raises:
            OSError: the disk is full or the folder is gone.
        """
        odd = {
            name: str(value)
            for name, value in values.items()
            if value is not None and not math.isfinite(value) and name not in CONTEXT
        }
        sample = Sample(t=round(t, 3), k=key, a=attempt, v=dict(values), odd=odd)
        self._write(f"{stream}.jsonl", self._encoder.encode(sample))
        minute = self._minutes.get((stream, key))
        start = math.floor(t / ROLLUP_S) * ROLLUP_S
        if minute is not None and (minute.t != start or minute.attempt != attempt):
            self._roll(stream, key, minute)
            minute = None
        if minute is None:
            minute = self._minutes[stream, key] = _Minute(start, attempt)
        minute.add(values)

    def close(self) -> None:
        """Write the unfinished minutes and close the files."""
        try:
            for (stream, key), minute in self._minutes.items():
                self._roll(stream, key, minute)
        finally:
            self._minutes.clear()
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _roll(self, stream: str, key: str, minute: _Minute) -> None:
        rollup = Rollup(t=minute.t, k=key, a=minute.attempt, v=minute.summary())
        self._write(f"{stream}.1m.jsonl", self._encoder.encode(rollup))

    def _write(self, name: str, line: bytes) -> None:
        fd = self._fds.get(name)
        if fd is None:
            # The file is reopened after an error. In a folder that was moved, no file is created again.
            made = 0 if name in self._sizes else os.O_CREAT
            if made:
                # Create the folder at the first sample, so a full disk costs samples, not the run. Create no parents: a deleted run stays deleted.
                self._folder.mkdir(mode=0o700, exist_ok=True)
                make_own(self._folder)  # the folder exists; this refuses a link
            fd = self._fds[name] = private(self._folder / name, os.O_WRONLY | os.O_APPEND | made)
            self._sizes[name] = os.fstat(fd).st_size
        try:
            self._sizes[name] += os.write(fd, line + b"\n")
        except OSError as error:
            if error.errno in _STALE:  # a file server was restarted, so the descriptor is useless
                with contextlib.suppress(OSError):
                    os.close(self._fds.pop(name))
            raise
        if self._sizes[name] >= self._segment_bytes:
            self._begin_segment(name)

    def _begin_segment(self, name: str) -> None:
        self._sizes[name] = 0
        with contextlib.suppress(OSError):  # in a moved folder, writing continues in the same file
            os.replace(self._folder / name, self._folder / _older(name))
            del self._sizes[name]
            os.close(self._fds.pop(name))


class _Minute:
    """The running minimum, sum, maximum and count of each value in one minute."""

    def __init__(self, t: float, attempt: int) -> None:
        self.t = t
        self.attempt = attempt
        self._values: dict[str, tuple[float, float, float, int]] = {}

    def add(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is None or not math.isfinite(value):
                continue
            low, total, high, count = self._values.get(name, (value, 0.0, value, 0))
            self._values[name] = (min(low, value), total + value, max(high, value), count + 1)

    def summary(self) -> dict[str, tuple[float, float, float, int]]:
        return {n: (low, total / count, high, count) for n, (low, total, high, count) in self._values.items()}


class SeriesReader:
    """Reads a stream by offset as it grows, from its older file into its newer one. An incomplete last line is left unread."""

    def __init__(self, folder: Path, stream: str) -> None:
        name = f"{stream}.jsonl"
        self._path, self._older = folder / name, folder / _older(name)
        self._inode, self._offset = 0, 0
        self._decoder = msgspec.json.Decoder(Sample)

    @property
    def is_thinned(self) -> bool:
        """Whether the oldest samples may be available only as one-minute roll-ups."""
        return self._older.exists()

    def read(self, *, limit_bytes: int = 1 << 22) -> list[Sample]:
        """Return the samples added since the last call, or [] if there are none. At most `limit_bytes` are read."""
        data = self._read(limit_bytes)
        end = data.rfind(b"\n") + 1
        self._offset += end
        return list(decoded(self._decoder, data[:end]))

    def seek_tail(self, tail_bytes: int) -> bool:
        """Start about `tail_bytes` before the end, at the start of a line. Return False if the stream was never that long."""
        new, old = _inode_and_size(self._path), _inode_and_size(self._older)
        here = new if new[1] > tail_bytes or not old[0] else old
        start = new[1] - tail_bytes if here is new else max(old[1] - (tail_bytes - new[1]), 0)
        if start <= 0:
            return bool(old[0])
        data = _read_from(self._path if here is new else self._older, start, 1 << 16)
        self._inode, self._offset = here[0], start + data.find(b"\n") + 1
        return True

    def before(self, limit_bytes: int) -> Iterator[Sample]:
        """Yield about `limit_bytes` of samples from before the position `seek_tail` chose, in small, evenly spaced pieces."""
        old = _inode_and_size(self._older)
        parts = [(self._older, old[1])] if old[0] and old[0] != self._inode else []
        parts.append((self._older if self._inode == old[0] else self._path, self._offset))
        every = max(sum(size for _, size in parts) * SKIM_BYTES // limit_bytes, SKIM_BYTES)
        for path, size in parts:
            for start in range(0, size, every):
                data = _read_from(path, start, min(SKIM_BYTES, size - start))
                first = data.find(b"\n") + 1 if start else 0
                yield from decoded(self._decoder, data[first : data.rfind(b"\n") + 1])

    def _read(self, limit_bytes: int) -> bytes:
        inode, size = _inode_and_size(self._path)
        if inode and inode == self._inode and size >= self._offset:
            return _read_from(self._path, self._offset, limit_bytes)
        older = _inode_and_size(self._older)
        if older[0] and older[0] != self._inode:
            self._inode, self._offset = older[0], 0  # the first read, or both files were replaced
        if older[0]:
            data = _read_from(self._older, self._offset, limit_bytes)
            if b"\n" in data or not inode:  # the newer file is created with its first sample
                return data
        self._inode, self._offset = inode, 0
        return _read_from(self._path, 0, limit_bytes)


def read_rollups(folder: Path, stream: str) -> list[Rollup]:
    """Return a stream's completed minutes, oldest first, or [] if there are none."""
    name = f"{stream}.1m.jsonl"
    data = b"\n".join(_read_from(folder / part, 0, 1 << 28) for part in (_older(name), name))
    return list(decoded(msgspec.json.Decoder(Rollup), data[: data.rfind(b"\n") + 1]))


def highest(folder: Path, stream: str, attempt: int) -> dict[str, dict[str, float]]:
    """Return each value's maximum in an attempt, keyed by sample key, using completed minutes and the latest samples.

    An attempt of several days has millions of samples, and the result is needed between a failure and the next launch.
    """
    found: dict[str, dict[str, float]] = {}
    for rollup in read_rollups(folder, stream):
        if rollup.a == attempt:
            for name, (_, _, high, _) in rollup.v.items():
                _raise(found.setdefault(rollup.k, {}), name, high)
    for sample in _newest(folder, stream):
        if sample.a == attempt:
            for name, value in sample.v.items():
                if value is not None and math.isfinite(value):
                    _raise(found.setdefault(sample.k, {}), name, value)
    return found


def at_first(folder: Path, stream: str, attempt: int, name: str) -> dict[str, float]:
    """Return a value's minimum in an attempt's first completed minute, or else its first sample, keyed by sample key."""
    found: dict[str, float] = {}
    for rollup in read_rollups(folder, stream):
        if rollup.a == attempt and name in rollup.v:
            found.setdefault(rollup.k, rollup.v[name][0])
    early: dict[str, float] = {}
    for sample in _newest(folder, stream):
        value = sample.v.get(name)
        if sample.a == attempt and value is not None:
            early.setdefault(sample.k, value)
    return early | found


def _newest(folder: Path, stream: str) -> Iterator[Sample]:
    reader = SeriesReader(folder, stream)
    reader.seek_tail(NEWEST_BYTES)
    while samples := reader.read():
        yield from samples


def _raise(found: dict[str, float], name: str, value: float) -> None:
    found[name] = max(found.get(name, value), value)


def _older(name: str) -> str:
    return f"{name.removesuffix('.jsonl')}.0.jsonl"


def _inode_and_size(path: Path) -> tuple[int, int]:
    inode, size, _ = mark_of(path) or (0, 0, 0)
    return inode, size


def _read_from(path: Path, offset: int, limit_bytes: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(limit_bytes)
    except OSError:
        return b""
