"""The keeper's lock: flock on ``keeper.lock``, which also names its holder.

flock is released by the kernel when its holder dies, however it dies; the pid and start time in the
file are for people and for telling a live keeper from a recycled pid on another host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec

from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import private

TRIES = 5
TRY_AGAIN_S = 0.03


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who took the lock last. `start_time`: seconds since boot."""

    pid: int
    start_time: float
    host: str


class LockTaken(Exception):  # noqa: N818 - a state of affairs, not an error
    """Another keeper is alive."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__(
            f"another keeper lives (pid {holder.pid} on {holder.host})" if holder else "another keeper lives"
        )


class KeeperLock:
    """Held from construction to `release`.

    Args:
        path: the lock file.
        start_time: this process's, seconds since boot.

    Raises:
        LockTaken: another keeper holds it.
        OSError: the folder cannot be written.
    """

    def __init__(self, path: Path, *, start_time: float) -> None:
        self._fd = _locked(path)
        holder = Holder(pid=os.getpid(), start_time=start_time, host=socket.gethostname())
        with contextlib.suppress(OSError):  # a full disk: the name is for people, the lock is held
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(holder) + b"\n", 0)

    def release(self) -> None:
        """Let another keeper in. The file stays: removing it would race with the next one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def show_life(self) -> None:
        """Set the file's times: what another host sees of a keeper whose flock does not reach it."""
        with contextlib.suppress(OSError):
            os.utime(self._fd)


def _locked(path: Path) -> int:
    fd = private(path, os.O_RDWR | os.O_CREAT)
    # Who asks `keeper_is_alive` holds the lock for some microseconds: a keeper holds it longer than this.
    for tries_left in reversed(range(TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not tries_left:
                os.close(fd)
                raise LockTaken(read_holder(path)) from None
            time.sleep(TRY_AGAIN_S)
    return fd


def read_holder(path: Path) -> Holder | None:
    """Who wrote the lock file last, dead or alive."""
    return decoded_file(path, Holder)


def holder_here(path: Path) -> Holder | None:
    """The same, where it was a process of this host."""
    holder = read_holder(path)
    return holder if holder is not None and holder.host == socket.gethostname() else None


def keeper_is_alive(path: Path) -> bool:
    """True while a keeper holds the lock (on this host, or wherever the filesystem's flock reaches).

    A copy made of hard links shares the lock with its original: of a run ask `ownership.has_keeper`.
    """
    try:
        # What lies there may be a pipe, or a link to another run's.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
