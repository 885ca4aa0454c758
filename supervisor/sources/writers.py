"""Who still writes a file: any process that we may look at and that has it open for writing, out of /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable


def any_is_written(paths: Iterable[str]) -> bool:
    """Whether some process that we may look at has one of the files open for writing; /proc is walked once."""
    wanted = {os.path.realpath(path) for path in paths}  # as the kernel names them
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fds = os.listdir(f"/proc/{entry}/fd")
        except OSError:
            continue
        if any(_writes(entry, fd, wanted) for fd in fds):
            return True
    return False


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
