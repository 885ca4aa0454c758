"""Determines which processes belong to a run.

A process belongs to the run by one of two signs that no file can forge:

- the *mark*: it was started with ``STOKER_RUN_DIR`` set to this run's directory (children inherit it); of a run on several nodes with
  ``STOKER_NODE_DIR`` set to this node's folder in it, because two nodes of a test or a cluster may share one machine; - the *parent
  chain*: it descends from the launcher, which is a child subreaper, so that children of a dead parent become the launcher's
  (prctl(2), PR_SET_CHILD_SUBREAPER), or from another process of the run.

A pid and start time in a journal or a pid file prove nothing: a forged or copied folder may name any process. If only a file names a
live process whose environment cannot be read (setproctitle overwrites it), it is *unknown*: listed, never signalled, and no reason to
delay a launch. A ``stoker run`` inside a job keeps its own processes: they and its keeper are *nested* and left alone.
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

# The first pid namespace's inode is fixed (linux/proc_ns.h, PROC_PID_INIT_INO). In another, the GPU driver's
# pids are not ours, and a lookup would name a random process.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
MARK, NODE_MARK = "STOKER_RUN_DIR", "STOKER_NODE_DIR"
LOCK_NAME = "keeper.lock"


@dataclass(frozen=True, slots=True)
class Members:
    """Live processes: the run's `ours`, parents before children; for `nested` and `unknown` see above."""

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
    """Check every process of this machine once.

    Args:
        run_dir: the run's directory, as passed to its processes; for a run on several nodes, this node's folder in it.
        started: processes that this process started, or their known descendants: they count without a mark.
        recorded: processes named only by a file.
        launchers: stoker's own helpers above its launches: processes below them count, they do not.
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
    """``12 python3``, as one line that is safe on a terminal: a process can name itself anything."""
    return f"{process.pid} {command_of(process.pid) or ''}".rstrip()


def is_marked(mark: str | None, run_dir: str) -> bool:
    """Whether a process that was started with `mark` belongs to the run in `run_dir`, or to a probe in it."""
    return bool(mark) and (mark == run_dir or str(mark).startswith(f"{run_dir}/"))


def bears_mark(process: ProcessId, run_dir: str) -> bool:
    """Whether this one process was started for the run in `run_dir`."""
    return is_marked(_mark_of(process.pid), run_dir)


def mark_in(env: Mapping[str, str]) -> str:
    """The mark in an environment; empty if none. A node's mark counts only if it belongs to the same run."""
    run, node = env.get(MARK, ""), env.get(NODE_MARK, "")
    return node if run and node.startswith(f"{run}/") else run


def _marks(table: Mapping[int, ProcessStat]) -> dict[int, str]:
    """The run that each process of our own user names as its own, if any.

    Anybody can set a process's environment, and root can read all of them.
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
    """Keepers of other runs among `found`, the processes they launched, and all descendants of either."""
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
    """Whether pids here match those that NVML and CUDA's messages name."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def user_of(pid: int) -> str | None:
    """The owner of a live process; None if it is gone or not visible."""
    uid = owner_of(pid)
    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
