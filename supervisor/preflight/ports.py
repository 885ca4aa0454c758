"""Ports: find a free one, and which process listens on a taken one."""

from __future__ import annotations

import errno
import os
import random
import socket
from contextlib import closing
from pathlib import Path
from typing import Final

from supervisor.job.errors import JobError
from supervisor.sources.processes import listening_sockets, open_files

TRIES: Final = 10
# Above the well-known services, below Linux's default ephemeral range (32768-60999): the kernel hands out
# ports of that range to any client at any moment, so that one found free there may be gone at launch.
LOWEST: Final = 20_000
HIGHEST: Final = 32_000


def free_port(*, tries: int = TRIES) -> int:
    """A port that nothing listens on now, outside the ephemeral range. Nothing is held: it may be lost again.

    Raises:
        JobError: none of `tries` candidates was free (exit code 3).
    """
    low, high = _range_outside_ephemeral()
    for candidate in random.sample(range(low, high + 1), k=min(tries, high - low + 1)):
        if is_free(candidate):
            return candidate
    raise JobError(f"no free port among {tries} of {low}-{high}: name one with --master-port", exit_code=3)


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` on every address of this machine, as torchrun's store would."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - closed at once
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a machine without IPv6
        with closing(probe):
            # As the store does: a port in TIME_WAIT is free for it.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError as error:
                if family == socket.AF_INET6 and not _taken(error):
                    continue  # IPv6 compiled in but switched off
                return False
    return True


def port_holder(port: int) -> str | None:
    """Who listens on `port`, such as ``python (pid 4711)``; None where /proc does not show it."""
    wanted = {name for _, of, name in listening_sockets(os.getpid()) if of == port}
    if not wanted:
        return None
    import psutil

    for process in psutil.process_iter():
        if any(name in wanted for _, name in open_files(process.pid)):
            try:
                return f"{process.name()} (pid {process.pid})"
            except psutil.Error:
                return f"pid {process.pid}"
    return "a process of another user"


def _range_outside_ephemeral() -> tuple[int, int]:
    """The candidates; a machine whose ephemeral range starts lower moves them below it."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return LOWEST, HIGHEST
    if first > LOWEST + 1000:
        return LOWEST, min(HIGHEST, first - 1)
    return (max(1024, first - 8000), first - 1) if first > 2048 else (LOWEST, HIGHEST)


def _taken(error: OSError) -> bool:
    return error.errno in {errno.EADDRINUSE, errno.EACCES}
