"""The tiny process between a keeper and what it launches. It preserves the exit status if the keeper dies.

Run as a file, isolated (``python -I -S launcher.py EXIT PID LOG -- CMD...``), standard library only. It starts CMD
with stdout and stderr appended to LOG, writes ``PID`` (CMD's pid and start_ticks, and the launcher's own) and, when
CMD exits, ``EXIT`` ({exit_code, t}; negative for a signal), both by rename. It also writes the content of ``PID``,
or {error, errno} if nothing started, to its own stdout as one line, which works even if the disk is full. It
ignores the signals that a closing terminal or a cluster's step teardown sends to every process, because its last
job is to record how CMD exited. CMD gets the default handlers.

The launcher is a child subreaper: when the parent of a process below CMD dies, the process is reparented to the
launcher, not to init, so the keeper can find it by its parent chain, whatever its session and environment. Once
``EXIT`` is written, the launcher stays until the last of these processes is gone or the keeper stops it.

If the folder that contains ``EXIT`` was deleted or moved, the launcher exits at once, and its own exit code is
CMD's (254 for a signal, or for 254 and above).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
RESERVED_BYTES = 4096
NO_NUMBER = 254  # the exit code if a signal ended CMD, or if CMD exited with 254 or 255: only `EXIT` can tell
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(argv: list[str]) -> int:
    """Start CMD and record how it exits. Return its code (or `NO_NUMBER`) once no orphan is left, or if it cannot be recorded."""
    exit_path, pid_path, log_path = argv[:3]
    command = argv[4:]
    code = 0
    _reserve(exit_path)
    _become_subreaper()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # the keeper blocked them until now (`child.spawn`)
    # srun sends USR1 to every process of its step. torchrun has no handler for USR1 and would die before the ranks have saved.
    default = [each for each in IGNORED if each != signal.SIGUSR1 or "SLURM_JOB_ID" not in os.environ]
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # a job may have placed links here
    try:
        with open(os.open(log_path, flags, 0o600), "wb") as log:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            pid = os.posix_spawnp(command[0], command, os.environ, file_actions=actions, setsigdef=default)
    except OSError as error:
        return _not_started(exit_path, f"{error.filename or command[0]}: {error.strerror}", error.errno)
    try:
        import json  # noqa: F401 - now, for `_write`: its 5 ms are no part of the command's start

        me = os.getpid()
        launcher = {"launcher_pid": me, "launcher_start_ticks": _start_ticks(me), "boot_id": _boot_id()}
        record: dict[str, object] = {"pid": pid, "start_ticks": _start_ticks(pid), **launcher}
        _write(pid_path, record)
    except (OSError, ImportError) as error:
        # An unrecorded command could never be found, so it must not run on. It is not reaped yet, so the
        # pid is still its own.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if isinstance(error, OSError):
            return _not_started(exit_path, f"{pid_path}: {error.strerror}", error.errno)
        return _not_started(exit_path, f"{pid_path}: {error}", None)
    _report(record)
    while True:
        try:
            ended, status = os.wait()  # reaps orphans, too, because no other process does
        except ChildProcessError:
            return code  # none is left
        if ended == pid:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if 0 <= exit_code < NO_NUMBER else NO_NUMBER
            try:
                _write(exit_path, {"exit_code": exit_code, "t": time.time()})
            except OSError:  # the folder was deleted, moved or not writable: only the keeper learns the code
                return code


def _not_started(exit_path: str, error: str, number: int | None) -> int:
    _report({"error": error, "errno": number})
    try:
        _write(exit_path, {"exit_code": 127, "t": time.time(), "error": error})
    except OSError:
        return 1  # the disk is full; the keeper knows, and the next keeper finds no process
    return 0


def _report(record: dict[str, object]) -> None:
    import json

    try:
        os.write(1, json.dumps(record).encode() + b"\n")
        fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(fd, 1)  # the reader need not wait for more
        os.close(fd)
    except OSError:
        return  # the reader is gone: the keeper died


def _become_subreaper() -> None:
    # Not Linux, or a Python without ctypes: orphans go to init.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _boot_id() -> str | None:
    """Return the ID of the current boot, or None if unknown. After a reboot, pids and start times mean nothing."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _start_ticks(pid: int) -> int:
    """Return field 22 of /proc/PID/stat, counting from the last ')' because a process name may contain anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _reserve(path: str) -> None:
    """Reserve space for the exit status now, so a command that fills the disk cannot cause its loss."""
    with contextlib.suppress(OSError):
        fd = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(b" " * RESERVED_BYTES)


def _write(path: str, record: dict[str, object]) -> None:
    import json

    # Overwrite what `_reserve` wrote, if anything. Blanks after the record do not disturb a JSON reader.
    fd = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb", buffering=0) as file:
        file.write(json.dumps(record).encode())
        os.fsync(fd)
    os.replace(f"{path}.part", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
