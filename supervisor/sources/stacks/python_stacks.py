"""Shows what processes are doing: Python stacks from py-spy, or else the kernel's view.

py-spy pauses a process for about 10 ms, so stacks are collected on demand, never on a timer. py-spy may be
missing or denied (Yama's ptrace_scope, another user's process, a process that is not dumpable). In that case, a
rank that registered Python's faulthandler for us is sent a signal. For any other process, /proc shows where each
thread is waiting in the kernel. A process without the handler is never signaled, because SIGUSR2 would kill it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from supervisor.run.regular import open_regular
from supervisor.sources.processes import (
    ProcessId,
    catches,
    is_alive,
    is_stopped,
    read_proc,
    send_signal,
)
from supervisor.text.decode import clean

_CAP_BYTES = 1 << 18
_MAX_THREADS = 64
FAULT_SIGNAL = signal.SIGUSR2
_FAULT_WAIT_S = 1.0
_POLL_S = 0.02
_LET_GO_S = 0.2
_FUTEX = {"x86_64": "202", "aarch64": "98"}


class StackSource(StrEnum):
    """Where a stack came from."""

    PY_SPY = "py-spy"
    FAULTHANDLER = "faulthandler"
    PROC = "proc"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Stack:
    """What a process is doing. `lines` are safe to display. `note` says why no better source was available.

    `main_call` is the number of the main thread's system call, "running", or None if unavailable. `for_ever` is True
    if that call waits for a lock with no timeout, False if it has a timeout, and None if unknown or there is no lock.
    """

    process: ProcessId
    source: StackSource
    lines: tuple[str, ...]
    note: str | None = None
    main_call: str | None = None
    for_ever: bool | None = None


def find_py_spy(python: str | None = None) -> str | None:
    """Find py-spy on PATH, next to the job's interpreter or next to ours. Return None if it is missing."""
    found = shutil.which("py-spy")
    if found is not None:
        return found
    for interpreter in (python, sys.executable):
        beside = shutil.which("py-spy", path=os.path.dirname(interpreter)) if interpreter else None
        if beside is not None:
            return beside
    return None


def collect_stacks(
    processes: Sequence[ProcessId],
    *,
    timeout_s: float = 5.0,
    py_spy: str | None = None,
    fault_folder: Path | None = None,
) -> list[Stack]:
    """Return one stack per process, in the given order, taking little more than `timeout_s` in total.

    Args:
        processes: the processes to inspect. A process that is gone gets the source NONE.
        timeout_s: the limit for all processes together, which are read in parallel.
        py_spy: the py-spy program; by default, the result of `find_py_spy`.
        fault_folder: where ranks that registered faulthandler keep their `<pid>.txt` dumps.
    """
    program = py_spy or find_py_spy()
    deadline = time.monotonic() + timeout_s
    children: list[subprocess.Popen[bytes] | None] = []
    for process in processes:
        # ptrace would block on a process that a signal has stopped.
        asked = is_alive(process) and not is_stopped(process.pid)
        children.append(_start(program, process) if asked and program is not None else None)
    found = [
        _finish(process, child, deadline, installed=program is not None)
        for process, child in zip(processes, children, strict=True)
    ]
    if fault_folder is None:
        return found
    return [
        _by_faulthandler(stack, fault_folder) if stack.source is StackSource.PROC else stack
        for stack in found
    ]


def _by_faulthandler(stack: Stack, folder: Path) -> Stack:
    path = _fault_file(stack.process, folder)
    if path is None or is_stopped(stack.process.pid):
        return stack
    try:
        before = path.stat().st_size
        if not send_signal(stack.process, FAULT_SIGNAL):
            return stack
        lines = _new_lines(path, before)
    except OSError:
        return stack
    if not lines:
        return stack
    call = _main_call(stack.process.pid)
    for_ever = _waits_for_ever(stack.process.pid)
    return Stack(stack.process, StackSource.FAULTHANDLER, lines, stack.note, call, for_ever)


def _new_lines(path: Path, offset: int) -> tuple[str, ...]:
    """Return the text after `offset` once the file stops growing. The handler writes its text in one go."""
    deadline = time.monotonic() + _FAULT_WAIT_S
    size, last = offset, offset
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        last, size = size, path.stat().st_size
        if size > offset and size == last:
            break
    with open_regular(path) as file:
        file.seek(offset)
        return _lines(file.read(_CAP_BYTES))


def _fault_file(process: ProcessId, folder: Path) -> Path | None:
    """Return a process's dump file if the process currently has a handler for the signal, else None."""
    path = folder / f"{process.pid}.txt"
    if not path.is_file():
        return None
    return path if catches(process.pid, FAULT_SIGNAL) else None


def _start(program: str, process: ProcessId) -> subprocess.Popen[bytes] | None:
    argv = [program, "dump", "--full-filenames", "--pid", str(process.pid)]
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError:
        return None


def _finish(
    process: ProcessId, child: subprocess.Popen[bytes] | None, deadline: float, *, installed: bool
) -> Stack:
    note = "py-spy could not be started" if installed else "py-spy is not installed"
    if child is not None:
        try:
            out, err = child.communicate(timeout=max(0.05, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            note = "py-spy did not answer in time"
        else:
            if child.returncode == 0 and out.strip():
                lines = _lines(out)
                idle = any("(idle)" in line and '"MainThread"' in line for line in lines)
                call = _call_of_waiting(process.pid, idle=idle)
                for_ever = _waits_for_ever(process.pid)
                return Stack(process, StackSource.PY_SPY, lines, main_call=call, for_ever=for_ever)
            text = _lines(err)
            note = f"py-spy: {text[-1]}" if text else f"py-spy ended with {child.returncode}"
    if not is_alive(process):
        return Stack(process, StackSource.NONE, (), "the process is gone")
    return Stack(process, StackSource.PROC, _from_proc(process.pid), note)


def _from_proc(pid: int) -> tuple[str, ...]:
    """Return each thread's name, its state, and the kernel function and system call it is waiting in."""
    try:
        threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return ()
    lines = []
    for thread in threads[:_MAX_THREADS]:
        folder = f"/proc/{pid}/task/{thread}"
        stat = _read(f"{folder}/stat")
        name = stat[stat.find("(") + 1 : stat.rfind(")")] or "?"
        state = stat[stat.rfind(")") + 2 :][:1] or "?"
        waits = _read(f"{folder}/wchan").strip()
        waits = waits if waits not in {"", "0"} else "-"
        call = _read(f"{folder}/syscall").split(" ", 1)[0].strip() or "-"
        lines.append(f"thread {thread} {name!r}: state {state}, waits in {waits}, system call {call}")
    if len(threads) > _MAX_THREADS:
        lines.append(f"… and {len(threads) - _MAX_THREADS} threads more")
    return tuple(lines)


def _main_call(pid: int) -> str | None:
    return _read(f"/proc/{pid}/syscall").split(" ", 1)[0].strip() or None


def _waits_for_ever(pid: int) -> bool | None:
    """Check whether the main thread is waiting for a lock with no timeout (the fourth argument of futex(2) is null)."""
    words = _read(f"/proc/{pid}/syscall").split()
    if len(words) < 5 or words[0] != _FUTEX.get(os.uname().machine):
        return None
    return int(words[4], 16) == 0


def _call_of_waiting(pid: int, *, idle: bool) -> str | None:
    """Return `_main_call` once the thread is waiting again. A thread runs briefly after a tracer releases it."""
    call = _main_call(pid)
    deadline = time.monotonic() + (_LET_GO_S if idle else 0.0)
    while call == "running" and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        call = _main_call(pid)
    return call


def _lines(raw: bytes) -> tuple[str, ...]:
    return tuple(clean(line) for line in raw[:_CAP_BYTES].rstrip().split(b"\n") if line.strip())


def _read(path: str) -> str:
    return clean((read_proc(path, 4096) or b"").replace(b"\n", b" "))
