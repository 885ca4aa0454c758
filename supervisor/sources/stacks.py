"""What processes are doing right now: Python stacks by py-spy, else what the kernel tells.

py-spy stops a process for some 10 ms, so stacks are taken on demand and never by a timer. It may be absent or
refused (Yama's ptrace_scope, another user's process): then /proc says where the kernel holds each thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.sources.processes import ProcessId, is_alive
from supervisor.text.decode import clean

_CAP_BYTES = 1 << 18
_MAX_THREADS = 64


class StackSource(StrEnum):
    """Where a stack came from."""

    PY_SPY = "py-spy"
    PROC = "proc"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Stack:
    """What one process was doing. `lines` are safe to show; `note` says why there is no better source."""

    process: ProcessId
    source: StackSource
    lines: tuple[str, ...]
    note: str | None = None


def collect_stacks(
    processes: Sequence[ProcessId], *, timeout_s: float = 5.0, py_spy: str | None = None
) -> list[Stack]:
    """One stack a process, in the order given, all within `timeout_s` and a little.

    Args:
        processes: whom to look at; one that is gone gets source NONE.
        timeout_s: for all of them together; they are taken side by side.
        py_spy: the program; by default the one on PATH.
    """
    program = py_spy or shutil.which("py-spy")
    deadline = time.monotonic() + timeout_s
    children: list[subprocess.Popen[bytes] | None] = []
    for process in processes:
        child = _start(program, process) if program is not None and is_alive(process) else None
        children.append(child)
    return [
        _finish(process, child, deadline, installed=program is not None)
        for process, child in zip(processes, children, strict=True)
    ]


def _start(program: str, process: ProcessId) -> subprocess.Popen[bytes] | None:
    argv = [program, "dump", "--pid", str(process.pid)]
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
                return Stack(process, StackSource.PY_SPY, _lines(out))
            said = _lines(err)
            note = f"py-spy: {said[-1]}" if said else f"py-spy ended with {child.returncode}"
    if not is_alive(process):
        return Stack(process, StackSource.NONE, (), "the process is gone")
    return Stack(process, StackSource.PROC, _from_proc(process.pid), note)


def _from_proc(pid: int) -> tuple[str, ...]:
    """Each thread's name, state, and the kernel function and system call that it waits in."""
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


def _lines(raw: bytes) -> tuple[str, ...]:
    return tuple(clean(line) for line in raw[:_CAP_BYTES].rstrip().split(b"\n") if line.strip())


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return clean(file.read(4096).replace(b"\n", b" "))
    except OSError:
        return ""
