"""What ``stoker attach`` can be given, found: a log, a folder of logs, a process by its pid, a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from supervisor.cli.common import say
from supervisor.cli.diagnosing.job_logs import BadInputError, log_file, read_jobs, tasks_of
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.keeper.observer.target import PIPE_NAME, ObservedLog, Target
from supervisor.run.paths import RunPaths
from supervisor.run.regular import open_regular
from supervisor.run.state import A_PIPE
from supervisor.sources.processes import (
    ProcessId,
    any_is_written,
    descendants,
    identify,
    read_cmdline,
    read_environ,
)
from supervisor.text.decode import HEAD_BYTES, is_binary, is_packed
from supervisor.text.prefixes import Origin, origin_of_path


def resolve(
    target: str,
    run: RunPaths,
    *,
    check_writers: bool = True,
    report_unseen: bool = False,
    pipe: int | None = None,
) -> tuple[Target, Callable[[], JobEvidence]]:
    """What `target` names and how to read it for a verdict.

    Args:
        target: as typed.
        run: the claimed run directory.
        check_writers: find out whether somebody still writes the logs.
        report_unseen: say on stderr what cannot be seen.
        pipe: the descriptor to read for ``-``; None: stdin.

    Raises:
        BadInputError: nothing to watch; one line.
    """
    if target == "-":
        return _pipe(run, pipe)
    path = Path(os.path.expanduser(target))
    if path.is_dir() or path.is_file() or not target.isdecimal():
        return _logs(path, check_writers=check_writers)
    return _process(int(target), report_unseen=report_unseen)


def _pipe(run: RunPaths, pipe: int | None) -> tuple[Target, Callable[[], JobEvidence]]:
    if pipe is None and sys.stdin.isatty():
        raise BadInputError(
            "-: stdin is the terminal: pipe a log into it, as in `train 2>&1 | stoker attach -`"
        )
    copy = run.node().attempt(1).root / PIPE_NAME

    def read() -> JobEvidence:
        return JobEvidence(logs=(log_file(str(copy))._replace(path=PIPE_NAME),))

    # A descriptor of its own: the screen takes the terminal as stdin.
    return Target("stdin", A_PIPE, pipe=os.dup(0) if pipe is None else pipe), read


def _logs(path: Path, *, check_writers: bool) -> tuple[Target, Callable[[], JobEvidence]]:
    sources = read_jobs([str(path)])[0][2].logs  # what is wrong with it is said of the name that was typed

    def read() -> JobEvidence:
        # A verdict's path is looked up from wherever the run is looked at.
        return read_jobs([os.path.abspath(path)])[0][2]

    if path.is_fifo():
        raise BadInputError(f"{path}: a named pipe, which can be read once: `stoker attach - < {path}`")
    if path.is_file() and _is_binary(path):
        raise BadInputError(f"{path}: a binary file, not a log; give a log, a folder of logs, a pid, or -")
    logs = []
    tasks = tasks_of([source.path for source in sources])
    for source in sources:
        absolute = os.path.abspath(source.path if os.path.exists(source.path) else path / source.path)
        origin = source.origin if path.is_dir() else origin_of_path(path.name)
        if origin.rank is None and origin.local_rank is None:
            origin = origin._replace(
                task=source.origin.task if source.origin.task is not None else tasks.get(source.path)
            )
        logs.append(ObservedLog(absolute, source.path, origin, packed=_is_packed(absolute)))
    target_name = path.name or str(path)
    ended = check_writers and not any_is_written(log.path for log in logs)
    return Target(target_name, os.path.abspath(path), tuple(logs), ended=ended), read


def _is_binary(path: Path) -> bool:
    """Whether a file's first bytes are no text of any kind. Zeros before the text are a hole that truncation left."""
    with open_regular(path) as file:
        head = file.read(HEAD_BYTES)
        if head and not head.strip(b"\0"):
            try:
                file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
            except OSError:
                return False
            head = file.read(HEAD_BYTES)
    return is_binary(head)


def _is_packed(path: str) -> bool:
    """Whether a log must be unpacked to be read."""
    try:
        with open_regular(path) as file:
            return is_packed(file.read(HEAD_BYTES))
    except OSError:
        return False


def _process(pid: int, *, report_unseen: bool) -> tuple[Target, Callable[[], JobEvidence]]:
    root = identify(pid)
    if root is None:
        raise BadInputError(f"{pid}: no process with this pid; it has ended")
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        raise BadInputError(
            f"{pid}: another user's process: its output cannot be seen; attach as that user, or give its log"
        )
    ranks: dict[int, ProcessId] = {}
    for process in descendants(root):
        rank = read_environ(process).get("RANK", "")
        if rank.isdigit():
            ranks.setdefault(int(rank), process)
    watched = ranks or {0: root}
    logs: dict[str, ObservedLog] = {}
    for number, process in sorted({**watched, -1: root}.items()):
        for fd, stream in ((1, "stdout"), (2, "stderr")):
            path = _regular_file(process.pid, fd)
            if path is not None:
                origin = Origin(rank=number, stream=stream) if number >= 0 and ranks else Origin()
                logs.setdefault(path, ObservedLog(path, os.path.basename(path), origin))
    unseen = (
        "" if logs else "its output goes to a terminal or a pipe and cannot be seen: only processes are shown"
    )
    if unseen and report_unseen:
        say(f"stoker attach: {pid}: {unseen}", file=sys.stderr)
    name = _program(read_cmdline(root)) or str(pid)

    def read() -> JobEvidence:
        jobs = [read_jobs([path])[0][2].logs[0] for path in logs if os.path.exists(path)]
        return JobEvidence(logs=tuple(jobs))

    ranked = tuple(sorted(watched.items()))
    return Target(name, f"pid {pid}", tuple(logs.values()), processes=ranked, unseen=unseen), read


def _program(command: list[str]) -> str:
    """What a process runs: its script or module, else its program."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1]
    return os.path.basename(script or (command[0] if command else ""))


def _regular_file(pid: int, fd: int) -> str | None:
    try:
        path = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None
    return path if path.startswith("/") and os.path.isfile(path) else None
