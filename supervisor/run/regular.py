"""Opens files that any user may have put there: regular files only, and without blocking.

A pipe named ``error.json``, ``exit`` or ``control/x.json`` would block its reader forever, a device may do anything when
opened, and files in /proc look regular but may never end (/proc/kmsg). Only input that the user named may be a pipe. Every
other file in a folder that stoker reads is opened here.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final, TypeAlias

FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Mark: TypeAlias = tuple[int, int, int]
"""A file's inode, size and mtime (nanoseconds). While they stay the same, the file is not read again."""


def mark_of(path: str | os.PathLike[str]) -> Mark | None:
    """Return a file's mark, or None if the file does not exist."""
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
    """Return the contents of a regular file, up to `most` bytes.

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
