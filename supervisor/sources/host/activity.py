"""What ranks' helpers and disks did up to now, out of /proc: whether anything moves while no step comes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable

from supervisor.sources.processes import ProcessId, descendants, is_alive, read_proc

# linux/sock_diag.h, inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _INFO = 4, 20, 2
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
    """What the ranks and their children read and wrote by read(2), write(2) and their like, caches included, and sent over TCP.

    proc(5) counts no send(2) in its wchar. A rank that waits for its peers sends nothing over gloo's or NCCL's sockets.
    """
    pids = [process.pid for rank in ranks if is_alive(rank) for process in (rank, *descendants(rank))]
    sent = _sent_bytes()
    return sum(map(_io, pids)) + sum(sent.get(inode, 0) for pid in pids for inode in _sockets(pid))


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


def _sockets(pid: int) -> set[str]:
    """What each descriptor of a process stands for, sockets as ``socket:[4711]``."""
    folder, found = f"/proc/{pid}/fd", set()
    with contextlib.suppress(OSError):  # it ended, or is not ours
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"{folder}/{number}"))
    return found


def _sent_bytes() -> dict[str, int]:
    """The bytes that were acknowledged on each TCP connection of this network namespace, by sock_diag(7); empty where it does not answer."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link:
        link.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            # nlmsghdr, a dump; inet_diag_req_v2: all states, with tcp_info.
            link.send(
                struct.pack("=IHHIIBBBxI48x", 72, _BY_FAMILY, 0x301, 0, 0, family, 6, _INFO, 0xFFFFFFFF)
            )
            kind = _BY_FAMILY
            while kind == _BY_FAMILY:
                data, at = link.recv(1 << 17), 0
                while at < len(data):
                    size, kind = struct.unpack_from("=IH", data, at)
                    if kind != _BY_FAMILY:  # the dump is done
                        break
                    (inode,) = struct.unpack_from("=I", data, at + 84)
                    attribute = at + 88
                    while attribute < at + size:
                        length, name = struct.unpack_from("=HH", data, attribute)
                        if name == _INFO and length >= 132:  # tcpi_bytes_acked, since Linux 4.1
                            found[f"socket:[{inode}]"] = struct.unpack_from("=Q", data, attribute + 124)[0]
                        attribute += max(length + 3 & ~3, 4)
                    at += size + 3 & ~3
    return found
