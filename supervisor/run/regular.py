"""Opens files that any user may have placed: only regular files, and without blocking.

A pipe named ``error.json``, ``exit`` or ``control/x.json`` would block its reader forever, a device may do anything when it is
opened, and files in /proc look regular but may never end (/proc/kmsg). Only the input that a person chose may be a pipe. Every
other file in a folder that stoker reads is opened here. Files of JSON lines are appended and read only as whole lines.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, TypeVar

import msgspec

from supervisor.run.paths import make_private, private

FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

T = TypeVar("T")
# Exceptions from decoding foreign bytes: ValueError for broken UTF-8 (msgspec's own errors only in some
# versions, not in 0.19), RecursionError for endless nesting, OverflowError for a huge integer.
NOT_DECODED: Final = (ValueError, msgspec.DecodeError, RecursionError, OverflowError)
_PACKER: Final = msgspec.msgpack.Encoder()

Mark: TypeAlias = tuple[int, int, int]
"""Inode, size and mtime (nanoseconds) of a file. While they stay the same, the file is not read again."""


def mark_of(path: str | os.PathLike[str]) -> Mark | None:
    """Return the mark of a file, or None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the file is missing, cannot be read, or is not a regular file.
    """
    # With O_NONBLOCK a FIFO opens at once, even without a writer. fstat then describes the opened file, not a name.
    fd = os.open(path, FLAGS)
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and info.st_dev != _proc():
        return os.fdopen(fd, "rb")
    os.close(fd)
    what = errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL
    raise OSError(what, os.strerror(what) if what == errno.EISDIR else "no regular file", str(path))


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Return the bytes of a regular file, at most `most`.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(path) as file:
        return file.read(most)


def read_text(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """Return the text of a regular file.

    Raises:
        OSError: see `open_regular`.
        UnicodeDecodeError: the file is not UTF-8.
    """
    return read_regular(path).decode("utf-8", errors)


def _proc() -> int:
    try:
        return os.stat("/proc").st_dev
    except OSError:
        return -1


def bounded(value: T) -> T:
    """Return the decoded value if every integer in it fits into 64 bits. 400 digits would overflow a float.

    Raises:
        OverflowError: an integer does not fit.
    """
    _PACKER.encode(value)  # MessagePack has no larger integers; takes 0.2 µs per event
    return value


def decoded_file(path: str | os.PathLike[str], kind: type[T], most_bytes: int = -1) -> T | None:
    """Decode a regular JSON file, of which at most `most_bytes` are read. Return None if it is missing or invalid."""
    try:
        return bounded(msgspec.json.decode(read_regular(path, most_bytes), type=kind))
    except (OSError, *NOT_DECODED):
        return None


def append_line(path: Path, *records: msgspec.Struct, follows: bool = False) -> OSError | None:
    """Append a line per record to a file of the user, creating its folder if needed; return the error if that fails.

    One write adds all lines, even after a torn line, so several processes may append at once. A link (unless `follows`), a
    pipe or another user's file is left alone, because no run depends on these files.
    """
    try:
        # A link to itself stays a link and is refused.
        target = Path(os.path.realpath(path)) if follows else path
        make_private(target.parent)
        fd = private(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
        with open(fd, "wb", buffering=0) as file:
            if os.fstat(fd).st_uid in {os.geteuid(), target.parent.stat().st_uid}:
                file.write(b"".join(b"\n" + msgspec.json.encode(record) + b"\n" for record in records))
    except OSError as error:  # an error while writing has no file name yet
        return OSError(error.errno, error.strerror, str(path))
    return None


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> Iterator[T]:
    """Yield the records in `data`. Skip damaged or foreign lines."""
    for line in data.split(b"\n"):
        if line:
            try:
                yield bounded(decoder.decode(line))
            except NOT_DECODED:
                continue
