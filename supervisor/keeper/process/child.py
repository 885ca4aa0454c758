"""A launched process tree: spawned or adopted, watched by pid and start time, signaled, and reaped.

The keeper need not be its parent. An adopted tree is watched in the same way, through the identities of its
processes and the exit file that the tiny launcher writes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.job.launch.env import applied
from supervisor.job.launch.plan import LaunchPlan
from supervisor.keeper.process.launcher import IGNORED, NO_NUMBER
from supervisor.keeper.process.members import bears_mark, find_members
from supervisor.run import events as ev
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.paths import AttemptPaths, make_own
from supervisor.run.regular import read_regular
from supervisor.sources.processes import (
    ProcessId,
    boot_id,
    descendants,
    identify,
    is_alive,
    parent_of,
    reap_child,
    send_signal,
)

LAUNCHER = Path(__file__).with_name("launcher.py")
SPAWN_DEADLINE_S = 10.0
REAP_S = 2.0
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
WRITE_S = 60.0
"""Seconds a launcher may take to write the exit status, because fsync may have to wait for gigabytes of checkpoint data."""
NOBODY = ProcessId(0, -1.0)
"""Placeholder for a process that was never seen alive or may not belong to the run."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the launched command exited. `exit_code` is None if it was not recorded. `t` is the time, in wall seconds."""

    exit_code: int | None
    error: str | None = None
    t: float | None = None


class SpawnError(Exception):
    """The command did not start. The message is one line. `disk_full` and `killed` (the launcher was killed) give the cause."""

    def __init__(self, message: str, *, disk_full: bool = False, killed: bool = False) -> None:
        super().__init__(message)
        self.disk_full, self.killed = disk_full, killed


class Child:
    """A launched command, created by `spawn` or `adopt`.

    Attributes:
        pid: the command; `NOBODY` if it was never seen, or is alive but may not belong to the run.
        launcher: the small launcher process above it, which adopts the command's orphans; it may also be `NOBODY`.
    """

    def __init__(self, paths: AttemptPaths, pid: ProcessId, launcher: ProcessId = NOBODY) -> None:
        self.paths, self.pid, self.launcher = paths, pid, launcher
        self._gone_since: float | None = None
        self._reaped: ExitStatus | None = None

    def poll(self) -> ExitStatus | None:
        """Return the exit status once the command has exited, or None before that."""
        status = read_exit(self.paths) or self._reaped
        if status is not None:
            return status
        if is_alive(self.pid):
            return None
        code = reap_child(self.pid)  # the keeper's child since its launcher was killed
        if code is None:
            # The attempt's folder was deleted, moved, or not writable.
            said = reap_child(self.launcher)  # a number here is the command's exit code
            code = said if said is not None and 0 <= said < NO_NUMBER else None
        if code is not None:
            # The file may have been written since the last check, with the time of the exit.
            self._reaped = read_exit(self.paths) or ExitStatus(code)
            return self._reaped
        # The launcher writes the exit file within milliseconds of the command's end, or as soon as a busy
        # disk allows. If the launcher was killed, no file will come: after a second the status is lost.
        now = time.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        patience_s = WRITE_S if is_alive(self.launcher) else 1.0
        return ExitStatus(None, "its exit status was lost") if now - self._gone_since > patience_s else None

    def roots(self) -> tuple[ProcessId, ...]:
        """Return the attempt's topmost live processes: the command and its launcher."""
        return tuple(process for process in (self.pid, self.launcher) if is_alive(process))

    def tree(self) -> list[ProcessId]:
        """Return the command's live descendants."""
        return descendants(self.pid) if is_alive(self.pid) else []

    def release(self) -> None:
        """Shut down the launcher once the exit status is known and none of its descendants is still being waited for."""
        send_signal(self.launcher)
        deadline = time.monotonic() + REAP_S  # a launcher that hangs on a dead disk exits on its own later
        while is_alive(self.launcher) and time.monotonic() < deadline:
            time.sleep(0.005)
        reap_child(self.launcher)


def started(child: Child, number: int, now: float) -> ev.AttemptStarted:
    """Return the event for a started attempt. `now` is in wall seconds."""
    return ev.AttemptStarted(t=now, attempt=number, pid=child.pid.pid, start_time=child.pid.start_time)


def spawn(plan: LaunchPlan, paths: AttemptPaths, env: Mapping[str, str]) -> Child:
    """Start a plan in its own session.

    Raises:
        SpawnError: the interpreter or the launcher could not be started.
    """
    launcher_argv = (
        sys.executable,
        "-I",
        "-S",
        LAUNCHER,
        paths.exit,
        paths.root / "pid",
        paths.agent_log,
        "--",
    )
    command = [*map(str, launcher_argv), *plan.argv]
    try:
        for folder in (paths.root, paths.telemetry, Path(plan.torchrun_log_dir or paths.telemetry)):
            make_own(folder)
        with _blocked_signals():
            launcher = subprocess.Popen(
                command,
                cwd=plan.cwd,
                env=applied(env, plan.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
    except OSError as error:
        where = error.filename or plan.cwd
        raise SpawnError(
            f"cannot start {plan.argv[0]}: {where}: {error.strerror}", disk_full=error.errno in DISK_FULL
        ) from error
    except ValueError as error:  # a NUL byte in an argument, "=" in a variable's name
        raise SpawnError(f"cannot start {plan.argv[0]}: {error}") from error
    reported = _first_line(launcher)
    if (command_id := _identity(reported)) is not None:
        # From now on, pid and start time identify the launcher. A Popen that is dropped alive would complain.
        launcher.returncode = 0
        return Child(paths, command_id, _identity(reported, "launcher_") or NOBODY)
    if reported or launcher.poll() is not None:
        _reap(launcher)
        if not reported and (found := read_pid(paths)) is not None:
            return Child(paths, found)  # the launcher was killed a moment too early
        text = (
            reported.get("error")
            or f"the launcher ended with {launcher.returncode} before {plan.argv[0]} ran"
        )
        killed = not reported and (launcher.returncode or 0) < 0
        raise SpawnError(str(text), disk_full=reported.get("errno") in DISK_FULL, killed=killed)
    # The launcher leads its session and group, which include a command that it just started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
    _reap(launcher)
    raise SpawnError(f"{plan.argv[0]} did not start within {SPAWN_DEADLINE_S:.0f} s")


def adopt(paths: AttemptPaths, run_dir: str, *, wait_s: float = 0.0) -> Child | None:
    """Return the child that an earlier keeper spawned here, dead or alive, or None if it was never started.

    The pid file may be copied or forged, so it is trusted only for processes that have the run's mark or whose parent
    is a launcher with the mark. `wait_s` is how long to wait for a launcher that may have just started.
    """
    deadline = time.monotonic() + wait_s
    while True:
        status, found = read_exit(paths), read_pid(paths)
        if found is not None:
            launcher = read_launcher(paths) or NOBODY
            launcher = launcher if is_alive(launcher) and bears_mark(launcher, run_dir) else NOBODY
            below = launcher is not NOBODY and parent_of(found.pid) == launcher.pid
            strange = is_alive(found) and not (below or bears_mark(found, run_dir))
            return Child(paths, NOBODY if strange else found, launcher)
        if status is not None:
            return Child(paths, NOBODY)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)


def read_pid(paths: AttemptPaths) -> ProcessId | None:
    """Return the identity of the launched command, as recorded in the launcher's pid file."""
    return _identity(_read_json(paths.root / "pid") or {})


def read_launcher(paths: AttemptPaths) -> ProcessId | None:
    """Return the identity of the launcher itself, as recorded in its pid file."""
    return _identity(_read_json(paths.root / "pid") or {}, "launcher_")


def alive_of(run_dir: str, paths: AttemptPaths) -> tuple[ProcessId, ...]:
    """Return the run's live processes, except for its latest attempt's launcher, which exits with them."""
    launcher = read_launcher(paths)
    return find_members(run_dir, launchers=[launcher] if launcher is not None else []).ours


def end_all(run_dir: str, paths: AttemptPaths, within_s: float = REAP_S) -> tuple[ProcessId, ...]:
    """Kill all processes of an attempt, including unrecorded ones. Return those still alive after `within_s`."""
    deadline = time.monotonic() + within_s
    while (alive := alive_of(run_dir, paths)) and time.monotonic() < deadline:
        kill_all([*alive])
        time.sleep(0.05)
    return alive


def read_exit(paths: AttemptPaths) -> ExitStatus | None:
    """Return the exit status recorded by the launcher, or None."""
    record = _read_json(paths.exit)
    if record is None:
        return None
    code = record.get("exit_code")
    error, t = record.get("error"), record.get("t")
    return ExitStatus(
        code if isinstance(code, int) else None,
        error if isinstance(error, str) else None,
        t if isinstance(t, float) else None,
    )


def kill_all(pids: list[ProcessId], number: signal.Signals = signal.SIGKILL) -> list[ProcessId]:
    """Signal each process in `pids` that still exists with the same identity. Return the ones that were signaled."""
    return [pid for pid in pids if send_signal(pid, number)]


def raise_open_files_limit() -> None:
    """Raise the keeper's soft limit on open files to the hard limit. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_identity() -> ProcessId:
    """Return the identity of this process."""
    found = identify(os.getpid())
    assert found is not None, "a process can always identify itself"
    return found


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block the signals that the launcher will ignore, until it is ready. The launcher inherits this mask and then lifts it.

    scancel and service managers signal all processes at once. A launcher still loading would die, failing the launch.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap(launcher: subprocess.Popen[bytes]) -> None:
    """Reap a launcher that started nothing. One that hangs on a dead disk exits on its own later."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.wait(timeout=REAP_S)


def _first_line(launcher: subprocess.Popen[bytes]) -> dict[str, object]:
    """Return the launcher's startup report; empty if it died before sending one or takes too long."""
    assert launcher.stdout is not None, "spawn makes it a pipe"
    line = b""
    with launcher.stdout as pipe:
        deadline = time.monotonic() + SPAWN_DEADLINE_S
        while not line.endswith(b"\n") and (left_s := deadline - time.monotonic()) > 0:
            if select.select([pipe], [], [], left_s)[0]:
                data = os.read(pipe.fileno(), 4096)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        launcher.wait(REAP_S)
                    return {}
                line += data
    record = json.loads(line) if line.endswith(b"\n") else {}
    return record if isinstance(record, dict) else {}


def _identity(record: Mapping[str, object], of: str = "") -> ProcessId | None:
    pid, ticks = record.get(f"{of}pid"), record.get(f"{of}start_ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return None
    if record.get("boot_id") != boot_id():
        return NOBODY  # the process ended with its boot, and its pid may have been reused
    return ProcessId(pid, ticks / os.sysconf("SC_CLK_TCK"))


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        record = json.loads(read_regular(path))
    except (OSError, *NOT_DECODED):
        return None
    return record if isinstance(record, dict) else None
