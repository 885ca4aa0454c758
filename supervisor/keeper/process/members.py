"""Determines which processes belong to a run.

A process belongs to the run if it shows one of two signs, neither of which a file can forge:

- the *mark*: the process was started with ``STOKER_RUN_DIR`` set to this run's directory (children inherit it). In
  a multi-node run, ``STOKER_NODE_DIR`` is also set to this node's folder, because two nodes of a test or a cluster
  may share one machine.
- the *parent chain*: the process descends from another process of the run or from the launcher. The launcher is a
  child subreaper, so the children of a dead parent are reparented to it (prctl(2), PR_SET_CHILD_SUBREAPER).

A pid and start time in a journal or a pid file prove nothing, because a forged or copied folder may list any
process. If only a file lists a live process whose environment cannot be read (setproctitle overwrites it), the
process is *unknown*: shown, never signaled, and no reason to delay a launch. A ``stoker run`` inside a job keeps
its processes: they and its keeper are *nested* and left alone.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.sources.processes import (
    ProcessId,
    ProcessStat,
    command_of,
    descendants,
    environment_value,
    open_files,
    owner_of,
    process_table,
)

# The first pid namespace's inode is fixed (linux/proc_ns.h, PROC_PID_INIT_INO). In another namespace the GPU
# driver's pids differ from those here, and a lookup would find a random process.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
MARK, NODE_MARK = "STOKER_RUN_DIR", "STOKER_NODE_DIR"
LOCK_NAME = "keeper.lock"


@dataclass(frozen=True, slots=True)
class Members:
    """Live processes. `ours` are the run's, parents before children. The module docstring explains `nested` and `unknown`."""

    ours: tuple[ProcessId, ...] = ()
    nested: tuple[ProcessId, ...] = ()
    unknown: tuple[ProcessId, ...] = ()


def find_members(
    run_dir: str,
    *,
    started: Iterable[ProcessId] = (),
    recorded: Iterable[ProcessId] = (),
    launchers: Iterable[ProcessId] = (),
) -> Members:
    """Check every process on this machine once.

    Args:
        run_dir: the run's directory, as passed to its processes; for a multi-node run, this node's folder in it.
        started: processes that this process started, or their known descendants. They count even without a mark.
        recorded: processes that only a file mentions.
        launchers: stoker's own helpers above its launches. Processes below them count; the helpers do not.
    """
    table = process_table()
    marks = _marks(table)
    bearers = [pid for pid, mark in marks.items() if is_marked(mark, run_dir)]
    aside = {process.pid for process in launchers}
    trusted = [process for process in started if _is_there(process, table)]
    found: dict[int, ProcessId] = {}
    for root in (*trusted, *(ProcessId(pid, table[pid].start_time) for pid in bearers)):
        if not table[root.pid].is_dead:
            found.setdefault(root.pid, root)
        for process in descendants(root, table):
            found.setdefault(process.pid, process)
    found = {pid: process for pid, process in found.items() if pid not in aside and pid != os.getpid()}
    nested = _nested(found, marks, run_dir, table)
    ours = [process for pid, process in found.items() if pid not in nested]
    unknown = [
        process
        for process in recorded
        if process.pid not in found and _is_there(process, table) and not table[process.pid].is_dead
    ]
    return Members(tuple(ours), tuple(nested.values()), tuple(dict.fromkeys(unknown)))


def label_of(process: ProcessId) -> str:
    """Return a label such as ``12 python3``: one line, safe for a terminal, because a process can choose any name."""
    return f"{process.pid} {command_of(process.pid) or ''}".rstrip()


def is_marked(mark: str | None, run_dir: str) -> bool:
    """Check whether a process started with `mark` belongs to the run in `run_dir`, or to a probe in it."""
    return bool(mark) and (mark == run_dir or str(mark).startswith(f"{run_dir}/"))


def bears_mark(process: ProcessId, run_dir: str) -> bool:
    """Check whether this particular process was started for the run in `run_dir`."""
    return is_marked(_mark_of(process.pid), run_dir)


def mark_in(env: Mapping[str, str]) -> str:
    """Return the mark in an environment, or "". A node's mark counts only if it belongs to the same run."""
    run, node = env.get(MARK, ""), env.get(NODE_MARK, "")
    return node if run and node.startswith(f"{run}/") else run


def _marks(table: Mapping[int, ProcessStat]) -> dict[int, str]:
    """Return the mark of each of the current user's processes that has one, keyed by pid.

    Other users are skipped because any user can set a process's environment and root can read all of them.
    """
    found = {
        pid: _mark_of(pid)
        for pid, stat in table.items()
        if not stat.is_dead and owner_of(pid) == os.geteuid()
    }
    return {pid: mark for pid, mark in found.items() if mark}


def _mark_of(pid: int) -> str:
    run = environment_value(pid, MARK)
    return mark_in({MARK: run, NODE_MARK: environment_value(pid, NODE_MARK) or ""}) if run else ""


def _is_there(process: ProcessId, table: Mapping[int, ProcessStat]) -> bool:
    stat = table.get(process.pid)
    return stat is not None and stat.start_time == process.start_time


def _nested(
    found: Mapping[int, ProcessId], marks: Mapping[int, str], run_dir: str, table: Mapping[int, ProcessStat]
) -> dict[int, ProcessId]:
    """Return the keepers of other runs in `found`, the processes they launched, and all of their descendants."""
    tops = []
    for pid, process in found.items():
        is_other = pid in marks and not is_marked(marks[pid], run_dir)
        # A keeper holds the lock file of its run open.
        if is_other or any(
            path.endswith(f"/{LOCK_NAME}") and not path.startswith(f"{run_dir}/")
            for _, path in open_files(pid)
        ):
            tops.append(process)
    nested = {process.pid: process for process in tops}
    for top in tops:
        nested |= {process.pid: process for process in descendants(top, table)}
    return nested


def pids_are_the_drivers() -> bool:
    """Check whether pids here match the ones reported by NVML and in CUDA's messages."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def user_of(pid: int) -> str | None:
    """Return the owner of a live process, or None if it is gone or not visible."""
    uid = owner_of(pid)
    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
