"""What ranks' helpers and disks did up to now, out of /proc: whether anything moves while no step comes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from supervisor.sources.processes import ProcessId, descendants, is_alive, read_proc

# System calls, and besides what a mapped file reads from the disk, which is none.
_COUNTED = frozenset((b"rchar", b"wchar", b"read_bytes"))


def helper_cpu_s(ranks: Iterable[ProcessId]) -> float:
    """CPU seconds of the ranks' own children, living and waited for (data workers, compilers), not of the ranks."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0
    for rank in ranks:
        total += _ticks(rank.pid)[1]
        total += sum(sum(_ticks(child.pid)) for child in descendants(rank))
    return total / tick


def own_cpu_s(rank: ProcessId) -> float:
    """CPU seconds of one rank's own process, all its threads; 0 where it is gone."""
    return _ticks(rank.pid)[0] / os.sysconf("SC_CLK_TCK") if is_alive(rank) else 0.0


def io_bytes(ranks: Iterable[ProcessId]) -> int:
    """What the ranks and their children read and wrote by read(2), write(2) and their like, caches included.

    An upload counts as it reads its file, and where it is encrypted (OpenSSL writes by write(2)). What a plain send(2) takes from
    memory is in no counter of proc(5).
    """
    pids = [process.pid for rank in ranks if is_alive(rank) for process in (rank, *descendants(rank))]
    return sum(map(_io, pids))


def _ticks(pid: int) -> tuple[int, int]:
    """A process's own clock ticks, and those of its children that it has waited for."""
    raw = read_proc(f"/proc/{pid}/stat", 4096) or b""
    fields = raw[raw.rfind(b")") + 2 :].split()
    try:
        # utime, stime, cutime, cstime are fields 14 to 17 of stat; the first here is field 3.
        return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    except (IndexError, ValueError):
        return 0, 0


def _io(pid: int) -> int:
    total = 0
    for line in (read_proc(f"/proc/{pid}/io", 4096) or b"").splitlines():
        name, _, value = line.partition(b":")
        if name in _COUNTED:
            total += int(value)
    return total
