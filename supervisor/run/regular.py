"""Opening files that anybody may have put where they lie: only regular ones, and never waiting.

A pipe named ``error.json``, ``exit`` or ``control/x.json`` would hold its reader for ever, a device may do anything when it is
opened, and files of /proc say that they are regular and may never end (/proc/kmsg). Only the one input that a person named may
be a pipe. Everything else in a folder that stoker looks at is opened here.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final, TypeAlias

FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Mark: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change (nanoseconds) of a file: while they are the same, it is not read again."""


def mark_of(path: str | os.PathLike[str]) -> Mark | None:
    """The mark of a file; None where it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading.

    Raises:
        OSError: it is missing, cannot be read, or is no regular file.
    """
    # A FIFO opens at once with O_NONBLOCK, also without a writer; fstat then tells of what was opened, not of a name.
    fd = os.open(path, FLAGS)
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and info.st_dev != _proc():
        return os.fdopen(fd, "rb")
    os.close(fd)
    what = errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL
    raise OSError(what, os.strerror(what) if what == errno.EISDIR else "no regular file", str(path))


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The bytes of a regular file, at most so many.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(path) as file:
        return file.read(most)


def read_text(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """The text of a regular file.

    Raises:
        OSError: see `open_regular`.
        UnicodeDecodeError: it is no UTF-8.
    """
    return read_regular(path).decode("utf-8", errors)


def _proc() -> int:
    try:
        return os.stat("/proc").st_dev
    except OSError:
        return -1
