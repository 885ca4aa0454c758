"""Resolve the target of ``stoker attach``: a log, a folder with one job's logs, a process (by pid), or a pipe."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from supervisor.cli.common import complain
from supervisor.cli.job_logs import BadInputError, file_chunks, log_file, read_jobs, refuse_binary, tasks_of
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.keeper.observed_run import (
    ATTEMPT,
    PIPE_NAME,
    ObservedLog,
    Target,
    both_ends,
    span_of_logs,
)
from supervisor.run.paths import RunPaths, make_private, private
from supervisor.run.regular import open_regular
from supervisor.run.state import A_PIPE
from supervisor.sources.processes import ProcessId, descendants, identify, read_cmdline, read_environ
from supervisor.text.decode import HEAD_BYTES, is_packed, plain_chunks, shell_word
from supervisor.text.prefixes import Origin, origin_of_path

FREE_BYTES = 1 << 30
"""Unpacking a log stops before the free disk space drops below this many bytes."""
LOOK_BYTES = 1 << 26
NOT_UNPACKED = "its log was not unpacked to its end"

Found = tuple[Target, Callable[[], JobEvidence]]


def resolve(target: str, run: RunPaths) -> Found:
    """Determine what `target` refers to and how to read it for a verdict, unpacking packed logs into the run directory.

    Whether a process is still writing to the logs is checked later, because that requires scanning every process.

    Raises:
        BadInputError: there is nothing to watch, or a folder holds logs of several jobs. The message is one line.
    """
    if target == "-":
        return _pipe(run)
    path = Path(os.path.expanduser(target))
    if path.is_dir() or path.is_file() or not target.isdecimal():
        return _logs(path, target, run)
    return _process(int(target))


def _pipe(run: RunPaths) -> Found:
    if sys.stdin.isatty():
        raise BadInputError(
            "-: stdin is the terminal: pipe a log into it, as in `train 2>&1 | stoker attach -`"
        )
    copy = run.node().attempt(ATTEMPT).root / PIPE_NAME

    def read() -> JobEvidence:
        return JobEvidence(logs=(log_file(str(copy))._replace(path=PIPE_NAME),))

    # Keep a separate descriptor, because the screen takes the terminal as stdin.
    return Target("stdin", A_PIPE, pipe=os.dup(0)), read


def _logs(path: Path, typed: str, run: RunPaths) -> Found:
    sources = read_jobs([str(path)])[0][2].logs  # errors mention the path as typed

    def read() -> JobEvidence:
        # The verdict's path must resolve from any working directory.
        return read_jobs([os.path.abspath(path)])[0][2]

    if path.is_fifo():
        raise BadInputError(f"{path}: a named pipe, which can be read once: `stoker attach - < {path}`")
    if path.is_file():
        refuse_binary(str(path))
    logs = []
    tasks = tasks_of([source.path for source in sources])
    for source in sources:
        absolute = os.path.abspath(source.path if os.path.exists(source.path) else path / source.path)
        origin = source.origin if path.is_dir() else origin_of_path(path.name)
        if origin.rank is None and origin.local_rank is None:
            origin = origin._replace(
                task=source.origin.task if source.origin.task is not None else tasks.get(source.path)
            )
        logs.append(ObservedLog(absolute, source.path, origin))
    if path.is_dir() and (several := several_jobs(os.path.expanduser(typed), logs)):
        raise BadInputError(several)
    cut, place = "", run.node().attempt(ATTEMPT).root
    for index, packed in enumerate(logs):
        if _is_packed(packed.path):
            make_private(place)
            plain = place / f"{index}-{os.path.basename(packed.path).removesuffix('.gz')}"
            cut = cut if _unpack(packed.path, plain) else NOT_UNPACKED
            logs[index] = ObservedLog(str(plain), packed.name, packed.origin, packed=packed.path)
    return Target(path.name or str(path), os.path.abspath(path), tuple(logs), cut=cut), read


def _unpack(source: str, plain: Path) -> bool:
    """Unpack a gzip or UTF-16 log for the views, which read only the run directory. Return whether it is complete."""
    torn: list[bool] = []
    written = due = 0
    try:
        with open(plain, "wb", buffering=0, opener=private) as file:
            for data in plain_chunks(file_chunks(source), lambda: torn.append(True)):
                if written >= due:
                    due = written + LOOK_BYTES
                    if shutil.disk_usage(plain.parent).free < FREE_BYTES + LOOK_BYTES:
                        complain("attach", f"{source}: not unpacked further: the disk is nearly full")
                        return False
                file.write(data)
                written += len(data)
    except (OSError, EOFError, zlib.error) as error:
        complain("attach", f"{source}: not unpacked further: {error}")
        return False
    return not torn


def _is_packed(path: str) -> bool:
    """Check whether a log has to be unpacked before it can be read."""
    try:
        with open_regular(path) as file:
            return is_packed(file.read(HEAD_BYTES))
    except OSError:
        return False


def _process(pid: int) -> Found:
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
    if unseen:
        complain("attach", f"{pid}: {unseen}")
    script = next((word for word in read_cmdline(root) if word.endswith(".py")), str(pid))

    def read() -> JobEvidence:
        jobs = [read_jobs([path])[0][2].logs[0] for path in logs if os.path.exists(path)]
        return JobEvidence(logs=tuple(jobs))

    ranked = tuple(sorted(watched.items()))
    return Target(
        os.path.basename(script), f"pid {pid}", tuple(logs.values()), processes=ranked, unseen=unseen
    ), read


def _regular_file(pid: int, fd: int) -> str | None:
    try:
        path = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None
    return path if path.startswith("/") and os.path.isfile(path) else None


# Ranks, nodes and tasks of one job start within this time.
TOGETHER_S = 600.0
# Maximum number of names in the message about a folder.
NAMED = 3
TRACEBACK = "Traceback (most recent call last):"
_ENDING = re.compile(r"(?:\.(?:log|txt|out|err|stdout|stderr|jsonl?|gz|\d{1,3}))+$")
_SCHEDULERS = re.compile(r"(?:^|/)(?:slurm|pbs|lsf)\b|\.[oe]\d+$")
# Words in a log's name that do not tell jobs apart: a numbered part of a job, a stream, the kind of content.
_NOT_OF_A_JOB = re.compile(
    r"(?:(?:rank|node|worker|gpu)s?|local|global|host|pod|proc|process|task|machine|replica|attempt)[^a-z\d]*\d*"
    r"|(?<![a-z])(?:logs?|outputs?|out|errors?|err|stdout|stderr|console|nohup|all|concat|combined|train(?:ing|er)?|pretrain"
    r"|finetune|eval|evaluate|val|valid|validation|test|metrics|debug|info|warnings|launcher|agent|torchrun|main|slurm)(?![a-z])"
)


def several_jobs(folder: str, logs: Sequence[ObservedLog]) -> str:
    """Return a line that says how to attach to one job if a folder holds logs from several training jobs, or "" otherwise.

    Jobs are distinguished by file name, ignoring words for a rank, node, task, stream or attempt. If names differ only in
    numbers, start times decide. A package list or a profile in a run's own folder does not count as a training job.
    """
    names = {log.path: os.path.relpath(log.path, os.path.realpath(folder)) for log in logs}
    groups: dict[tuple[str, ...], list[ObservedLog]] = {}
    for log in logs:
        groups.setdefault(_job_of(names[log.path].lower(), log.origin), []).append(log)
    groups.pop((), None)
    trainings = [(job, mine) for job, mine in groups.items() if any(map(_is_training, mine))]
    if not any(_are_apart(one, other) for one, other in combinations(trainings, 2)):
        return ""
    paths = sorted((log.path for mine in groups.values() for log in mine), key=lambda path: names[path])
    newest = max(paths, key=lambda path: os.stat(path).st_mtime if os.path.exists(path) else 0.0)
    rest = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    listed = ", ".join(names[path] for path in paths[:NAMED])
    one = shell_word(os.path.normpath(os.path.join(folder, names[newest])))
    return f"{folder}: logs of several jobs ({listed}{rest}): attach to one, such as the newest: stoker attach {one}"


def _job_of(name: str, origin: Origin) -> tuple[str, ...]:
    """Return the words in a log's name that identify its job. The result is empty if there are none."""
    if origin.local_rank is not None:
        return ()  # torchrun's own tree
    if origin.node is not None:
        name = name.replace(origin.node.lower(), " ")
    words = re.findall(r"[a-z]+|\d+", _NOT_OF_A_JOB.sub(" ", _ENDING.sub("", name)))
    has_number = (origin.rank, origin.node, origin.task) != (None, None, None)
    return tuple(word for word in words if not (has_number and word.isdigit()))


def _are_apart(
    one: tuple[tuple[str, ...], list[ObservedLog]], other: tuple[tuple[str, ...], list[ObservedLog]]
) -> bool:
    """Check whether two groups of logs belong to different jobs."""
    if [word for word in one[0] if not word.isdigit()] != [word for word in other[0] if not word.isdigit()]:
        places = [log.origin for log in (*one[1], *other[1])]
        # Words that differ may be host names of one job. Then each log has a rank, and no rank occurs twice.
        return not all(place.rank is not None for place in places) or len(set(places)) < len(places)
    if any(_SCHEDULERS.search(log.path.lower()) for log in one[1]):
        return True  # each job's log has its own number
    starts = [span.began_t for _, logs in (one, other) if (span := span_of_logs(logs)) is not None]
    return len(starts) < 2 or abs(starts[0] - starts[1]) > TOGETHER_S


def _is_training(log: ObservedLog) -> bool:
    """Check whether a log shows progress at its head or tail, or a traceback at its tail. Packed logs are assumed to."""
    from supervisor.sources.metrics import MetricReader

    if _is_packed(log.path):
        return True
    try:
        first, last = both_ends(log)
    except OSError:
        return False
    reader = MetricReader()
    return any(TRACEBACK in line for line in last) or any(map(reader.feed, (*first, *last)))
