"""Facts about files on disk: whether any process still has one open for writing (from /proc), and how large a file or folder is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from supervisor.sources.processes import open_files, read_proc

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
        pid = int(entry)
        if any(path in wanted and _opened_for_writing(pid, fd) for fd, path in open_files(pid)):
            yield pid


def _opened_for_writing(pid: int, fd: str) -> bool:
    for line in (read_proc(f"/proc/{pid}/fdinfo/{fd}", 4096) or b"").splitlines():
        if line.startswith(b"flags:"):
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
