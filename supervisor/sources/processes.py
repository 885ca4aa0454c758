"""Reads the identity, activity, open files and exits of processes from /proc, keyed by pid and start time.

The kernel recycles pids. A pid and its start time (field 22 of ``/proc/<pid>/stat``, proc(5)) together
identify exactly one process until the next boot. No function in this module signals a bare pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

_ENVIRON_CAP_BYTES = 1 << 20
_SOCKETS_CAP_BYTES = 1 << 24
_LISTENS = "0A"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# linux/sock_diag.h, inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _INFO = 4, 20, 2
# These count the bytes of system calls, and disk reads through a mapped file, which need no system call.
_COUNTED = frozenset((b"rchar", b"wchar", b"read_bytes"))


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies exactly one process. `start_time` is in seconds since boot, accurate to a kernel tick (usually 10 ms)."""

    pid: int
    start_time: float


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/<pid>/stat that are used here. `start_ticks` is in clock ticks since boot."""

    state: str
    parent: int
    start_ticks: int

    @property
    def is_dead(self) -> bool:
        """Whether the process is a zombie, which merely occupies a pid and counts as dead."""
        return self.state in "ZXx"

    @property
    def start_time(self) -> float:
        """The start time in seconds since boot."""
        return self.start_ticks / os.sysconf("SC_CLK_TCK")


def boot_id() -> str | None:
    """Return the id of the current boot (random(4)). A pid and start time identify a process only within one boot."""
    raw = read_proc("/proc/sys/kernel/random/boot_id", 64)
    return raw.decode("ascii").strip() if raw is not None else None


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a live process, or None if no live process has this pid. Zombies do not count."""
    stat = _read_stat(pid)
    return None if stat is None or stat.is_dead else ProcessId(pid, stat.start_time)


def is_alive(process: ProcessId) -> bool:
    """Check whether this exact process is alive. A zombie, or a later process that reuses the pid, does not count."""
    return identify(process.pid) == process


def is_uninterruptible(process: ProcessId) -> bool:
    """Check whether this exact process is in uninterruptible sleep (state D), e.g. waiting for a GPU or a dead mount."""
    stat = _read_stat(process.pid)
    return stat is not None and stat.state == "D" and stat.start_time == process.start_time


def process_table() -> dict[int, ProcessStat]:
    """Return all processes on this machine, keyed by pid, including zombies."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: stat for pid in pids if (stat := _read_stat(pid)) is not None}


def descendants(process: ProcessId, table: Mapping[int, ProcessStat] | None = None) -> list[ProcessId]:
    """Return the live descendants of `process`, nearest generation first, each generation sorted by pid.

    Empty if the process is gone, because its children have been reparented. `table` is a process table read earlier.
    """
    table = process_table() if table is None else table
    root = table.get(process.pid)
    if root is None or root.start_time != process.start_time:
        return []
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found: list[ProcessId] = []
    seen = {process.pid}
    level = [process.pid]
    while level:
        below = sorted(child for parent in level for child in children.get(parent, ()) if child not in seen)
        seen.update(below)
        # A zombie's children are gone, but a thread group whose leader has exited shows as a zombie and may
        # still have children. So follow zombies, but list only live processes.
        found += [ProcessId(pid, table[pid].start_time) for pid in below if not table[pid].is_dead]
        level = below
    return found


def parent_of(pid: int) -> int | None:
    """Return the parent pid of a live process, or None if no live process has this pid."""
    stat = _read_stat(pid)
    return None if stat is None or stat.is_dead else stat.parent


def command_of(pid: int) -> str | None:
    """Return the kernel's name (first 15 bytes) for a process, whoever owns it, or None if it is gone."""
    raw = read_proc(f"/proc/{pid}/comm", 64)
    return raw.decode("utf-8", "replace").rstrip("\n") if raw else None


def read_environ(process: ProcessId) -> dict[str, str]:
    """Return the environment a process started with, or an empty dict if it is gone or belongs to another user.

    The environment is also empty for an instant between fork and exec, so retry later.
    """
    raw = read_proc(f"/proc/{process.pid}/environ", _ENVIRON_CAP_BYTES)
    if raw is None or not is_alive(process):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if sign}


def read_cmdline(process: ProcessId) -> list[str]:
    """Return a process's argument vector, or an empty list if it is gone or belongs to another user."""
    raw = read_proc(f"/proc/{process.pid}/cmdline", _ENVIRON_CAP_BYTES)
    if raw is None or not is_alive(process):
        return []
    return [os.fsdecode(part) for part in raw.rstrip(b"\0").split(b"\0")] if raw else []


def owner_of(pid: int) -> int | None:
    """Return the id of the user who owns a process, or None if it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def environment_value(pid: int, name: str) -> str | None:
    """Return a variable from a process's initial environment, or "" if it was not set.

    Return None if the environment is unavailable because the process belongs to another user, is gone, is just
    starting, or has overwritten it, as setproctitle does for longer titles (Ray and vLLM rename workers this way).
    """
    raw = read_proc(f"/proc/{pid}/environ", _ENVIRON_CAP_BYTES)
    entries = [entry for entry in (raw or b"").split(b"\0") if b"=" in entry]
    if not entries:
        return None
    wanted = os.fsencode(name) + b"="
    return next((os.fsdecode(entry[len(wanted) :]) for entry in entries if entry.startswith(wanted)), "")


def become_subreaper() -> bool:
    """Make this process adopt every descendant whose own parent dies (prctl(2), Linux 3.4).

    Return False if the system does not support this, in which case orphans go to init.
    """
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def reap_child(process: ProcessId) -> int | None:
    """Reap this exact process, a dead child of ours, and return its exit code (negative for a signal).

    Return None if it is alive, already reaped, or not our child.
    """
    stat = _read_stat(process.pid)
    if (
        stat is None
        or stat.state != "Z"
        or stat.parent != os.getpid()
        or stat.start_time != process.start_time
    ):
        return None
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if pid else None


def exit_code_of(process: ProcessId) -> int | None:
    """Return a zombie's exit code (negative for a signal), whoever its parent is, or None once it has been reaped.

    Field 52 of ``/proc/<pid>/stat`` (Linux 3.5) is readable only by the user who owns the process. Other users
    read 0, so 0 is trusted only for our own processes.
    """
    raw = read_proc(f"/proc/{process.pid}/stat", 4096)
    stat = _parse_stat(raw)
    if raw is None or stat is None or stat.state != "Z" or stat.start_time != process.start_time:
        return None
    try:
        status = int(raw[raw.rfind(b")") + 2 :].split()[49])
        return os.waitstatus_to_exitcode(status) if status or owner_of(process.pid) == os.geteuid() else None
    except (IndexError, ValueError):
        return None


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield a process's fds and their targets (a path or ``socket:[4711]``), or nothing if it is gone or not ours to read."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):  # closed since the listing, as the listing's own descriptor is
            yield number, os.readlink(f"{folder}/{number}")


def listening_sockets(pid: int) -> Iterator[tuple[str, int, str]]:
    """Yield the listening TCP sockets in a process's network namespace: hex address, port, and name as in `open_files`."""
    for table in ("tcp", "tcp6"):
        raw = read_proc(f"/proc/{pid}/net/{table}", _SOCKETS_CAP_BYTES) or b""
        for row in raw.decode("ascii").splitlines()[1:]:
            fields = row.split()
            if len(fields) > 9 and fields[3] == _LISTENS:
                address, _, port = fields[1].partition(":")
                yield address, int(port, 16), f"socket:[{fields[9]}]"


def is_stopped(pid: int) -> bool:
    """Check whether a signal has stopped the process or a tracer is holding it."""
    stat = _read_stat(pid)
    return stat is not None and stat.state in "Tt"


def catches(pid: int, number: int) -> bool | None:
    """Check whether a process currently has a handler for a signal. Return None if the process is gone.

    Python installs a SIGINT handler at startup and removes it at shutdown, after atexit and before it destroys
    its modules (``_PySignal_Fini``). With torch, the process then takes another half second or more to exit.
    """
    raw = read_proc(f"/proc/{pid}/status", 4096) or b""
    caught = next((line.split()[1] for line in raw.splitlines() if line.startswith(b"SigCgt:")), None)
    return bool(int(caught, 16) >> (number - 1) & 1) if caught is not None else None


def send_signal(process: ProcessId, number: int = signal.SIGKILL) -> bool:
    """Signal this exact process. Return False if it is gone, is a zombie, or is not ours to signal.

    The pidfd is opened before the identity check, so the pid cannot be reused between the check and the signal.
    Kernels before 5.3 have no pidfd, which leaves a window of a few microseconds.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        return is_alive(process) and _kill(process.pid, number)
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


class ExitWatch:
    """A thread that waits for any processes, not just children, to exit. Before Linux 5.3 (no pidfd), it reports nothing.

    Args:
        ended: called on the thread with a process's name and exit code, which is negative for a signal, or
            None if the parent reaped it first (torchrun polls its workers every 0.1 s).
    """

    def __init__(self, ended: Callable[[int, int | None], None]) -> None:
        self._ended = ended
        self._poller = select.poll()
        self._poke_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._poke_fd, select.POLLIN)
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[int, ProcessId]] = {}  # by descriptor
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stoker-exits", daemon=True)

    def watch(self, name: int, process: ProcessId) -> None:
        """Start waiting for a process to exit. One that is already gone is ignored. Any thread may call this."""
        with self._lock:
            if self._closing or any(known == process for _, known in self._watched.values()):
                return
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                return
            if not is_alive(process):  # ended but not yet polled by its parent, or already another process
                os.close(fd)
                return
            self._watched[fd] = name, process
            self._poller.register(fd, select.POLLIN)
            if self._thread.ident is None:
                self._thread.start()
        os.eventfd_write(self._poke_fd, 1)

    def close(self) -> None:
        """Stop the thread and close all descriptors."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        os.eventfd_write(self._poke_fd, 1)
        if self._thread.ident is not None:
            self._thread.join()
        for fd in (*self._watched, self._poke_fd):
            os.close(fd)

    def _run(self) -> None:
        while not self._closing:
            for fd, _ in self._poller.poll():
                if fd == self._poke_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(fd)
                    continue
                name, process = self._watched[fd]
                code = exit_code_of(process)
                with self._lock:
                    self._poller.unregister(fd)
                    del self._watched[fd]
                os.close(fd)
                self._ended(name, code)


def helper_cpu_s(ranks: Iterable[ProcessId]) -> float:
    """Return the CPU seconds used by the ranks' live and reaped children (data workers, compilers)."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0
    for rank in ranks:
        total += _ticks(rank.pid)[1]
        total += sum(sum(_ticks(child.pid)) for child in descendants(rank))
    return total / tick


def own_cpu_s(rank: ProcessId) -> float:
    """Return the CPU seconds used by a rank's own process, including all its threads, or 0 if it is gone."""
    return _ticks(rank.pid)[0] / os.sysconf("SC_CLK_TCK") if is_alive(rank) else 0.0


def io_bytes(ranks: Iterable[ProcessId]) -> int:
    """Return the bytes that ranks and their children read or wrote (read(2), write(2) etc., cached or not) or sent over TCP.

    The wchar field of proc(5) excludes send(2). A rank waiting for its peers sends nothing over gloo or NCCL sockets.
    """
    pids = [process.pid for rank in ranks if is_alive(rank) for process in (rank, *descendants(rank))]
    sent = _sent_bytes()
    return sum(map(_io, pids)) + sum(
        sent.get(inode, 0) for pid in pids for inode in {name for _, name in open_files(pid)}
    )


def any_is_written(paths: Iterable[str]) -> bool:
    """Check whether any process that we may inspect has one of the files open for writing. Walks /proc once."""
    return next(writers_of(paths), None) is not None


def writers_of(paths: Iterable[str]) -> Iterator[int]:
    """Yield the pids of visible processes that have one of the files open for writing. Walks /proc once."""
    wanted = {os.path.realpath(path) for path in paths}  # the kernel reports real paths
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        if any(path in wanted and _opened_for_writing(pid, fd) for fd, path in open_files(pid)):
            yield pid


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _read_stat(pid: int) -> ProcessStat | None:
    return _parse_stat(read_proc(f"/proc/{pid}/stat", 4096))


def _parse_stat(raw: bytes | None) -> ProcessStat | None:
    if not raw:
        return None
    # The command's name is in parentheses and may contain blanks and parentheses itself, so fields are
    # counted from the last ")": state (field 3), ppid (4), … starttime (22).
    fields = raw[raw.rfind(b")") + 2 :].split()
    try:
        return ProcessStat(fields[0].decode("ascii"), int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def read_proc(path: str, cap_bytes: int) -> bytes | None:
    """Return up to `cap_bytes` of a kernel file (/proc, /sys), or None if it is missing or unreadable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    parts: list[bytes] = []
    try:
        while cap_bytes > 0 and (part := os.read(fd, cap_bytes)):
            parts.append(part)
            cap_bytes -= len(part)
    except OSError:
        # The process ended during the read (ESRCH).
        return b"".join(parts) or None
    finally:
        os.close(fd)
    return b"".join(parts)


def _ticks(pid: int) -> tuple[int, int]:
    """Return the CPU time of a process and of its reaped children, in clock ticks."""
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


def _sent_bytes() -> dict[str, int]:
    """Return acknowledged bytes per TCP connection in this network namespace, from sock_diag(7). Empty on failure."""
    import socket
    import struct

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


def _opened_for_writing(pid: int, fd: str) -> bool:
    for line in (read_proc(f"/proc/{pid}/fdinfo/{fd}", 4096) or b"").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
