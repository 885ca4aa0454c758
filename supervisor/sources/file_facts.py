"""Facts about files on disk: whether any process still has one open for writing (from /proc), and how large a file or folder is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_ENTRIES = 10_000


def any_is_written(paths: Iterable[str]) -> bool:
    """Whether some process that we may look at has one of the files open for writing; /proc is walked once."""
    return next(_writers(paths), None) is not None


def writers_of(paths: Iterable[str]) -> list[int]:
    """The pids of those that have one of the files open for writing, as far as we may look; /proc is walked once."""
    return list(_writers(paths))


def _writers(paths: Iterable[str]) -> Iterator[int]:
    wanted = {os.path.realpath(path) for path in paths}  # as the kernel names them
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fds = os.listdir(f"/proc/{entry}/fd")
        except OSError:
            continue
        if any(_writes(entry, fd, wanted) for fd in fds):
            yield int(entry)


def _writes(pid: str, fd: str, wanted: set[str]) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}") in wanted and _opened_for_writing(pid, fd)
    except OSError:
        return False  # closed since the folder was listed


def _opened_for_writing(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def tree_bytes(path: Path) -> int | None:
    """Bytes of a file, or of all files below a folder; None when it is gone, or has more entries than are worth counting."""
    total = count = 0
    try:
        if not path.is_dir():
            return path.stat().st_size
        for root, _, names in os.walk(path):
            for name in names:
                count += 1
                if count > MAX_ENTRIES:
                    return None
                total += os.lstat(os.path.join(root, name)).st_size
    except OSError:
        return None
    return total
