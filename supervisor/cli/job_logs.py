"""Find a job's files: single logs, torchrun's tree, a run directory, per-node files, or stdin."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import socket
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.cli.common import complain, wait_while_read
from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords, SeenRecorder
from supervisor.diagnosis.scan.windows import window_bytes
from supervisor.diagnosis.slurm_states import state_in
from supervisor.job.errors import JobError
from supervisor.run.paths import RunPaths
from supervisor.run.regular import open_regular, read_regular
from supervisor.text.decode import HEAD_BYTES, is_binary, plain_chunks
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import NOWHERE, Origin, origin_of_path

FIRST_WORD_S = 1.0
"""Seconds before the first report. It must appear within 2 s, and starting the verb takes about 0.6 s on a busy machine."""
MOST_PAUSE_S = 60.0
MOST_FILES = 4096
_LOG_NAMES = Lazy(
    r"(?:\.(?:log|txt|out|err|stdout|stderr|jsonl?|gz)|^(?:stdout|stderr|console|nohup\.out|log)|-\d+\.out|\.o\d+|\.e\d+)$|^slurm-",
    re.IGNORECASE,
)
_NOT_LOGS = Lazy(
    r"^(?:meta|config|run|plan|args|params|settings|tokenizer\w*|special_tokens_map|vocab|generation_config|model\.safetensors\.index|trainer_state|all_results|train_results)\.json$|"
    r"^(?:requirements|LICENSE|README|CMakeLists)\S*|\.(?:json)$",
    re.IGNORECASE,
)
# Ends in a rank. Folders without a matching name skip the imports that recognize a dump.
_DUMP_NAME = Lazy(r"\d(?:\.json|\.pkl|\.pickle)?$")
_RECORDS = Lazy(r"^(?:scontrol|sacct|squeue|sinfo|jobcomp|timeline)\S*\.txt$", re.IGNORECASE)
_SKIPPED_FOLDERS = frozenset(
    [
        "telemetry",
        "series",
        "control",
        "artifacts",
        ".git",
        "__pycache__",
        "wandb",
        "checkpoints",
        "tensorboard",
    ]
)


@dataclass
class Reading:
    """The file being read and the number of bytes read so far (compressed bytes if it is compressed)."""

    path: str = ""
    seen: int = 0

    @contextlib.contextmanager
    def reported(self, verb: str, path: str) -> Iterator[None]:
        """Report slow reads on stderr at growing intervals until the context exits. `path` is the first file read."""
        self.path, done = path, threading.Event()

        def report() -> None:
            pause_s = FIRST_WORD_S
            while not done.wait(pause_s):
                pause_s = min(pause_s * 2, MOST_PAUSE_S)
                complain(verb, f"{self.path}: {self.seen / 1e6:,.0f} MB read so far: Ctrl-C leaves")

        threading.Thread(target=report, name="stoker-reading", daemon=True).start()
        try:
            yield
        finally:
            done.set()


READING = Reading()


class BadInputError(ValueError):
    """A path cannot be diagnosed. The message says why and what to do about it."""


def path_or_run(path: str) -> str:
    """Return the path itself, or the directory of the run whose full or partial id it matches."""
    if path == "-" or os.path.lexists(path) or os.sep in path:
        return path
    from supervisor.run.index import RunNotFound, find_run, runs_dir

    try:
        return str(find_run(path, runs_dir(None, os.environ), os.environ).root)
    except RunNotFound:
        return path


def read_jobs(
    paths: Sequence[str], *, each: bool = False, attempt: int | None = None
) -> list[tuple[str, int | None, JobEvidence]]:
    """Turn paths into (path as given, attempt or None, evidence) tuples. Files are opened only when read.

    Raises:
        BadInputError: a path is missing or unreadable, or is a folder with no logs.
    """
    jobs: list[tuple[str, int | None, JobEvidence]] = []
    for path in paths:
        if path == "-":
            jobs.append(("-", None, JobEvidence(logs=(LogSource("-", _stdin_chunks()),))))
            continue
        _refuse_own_files(path)
        if os.path.isdir(path):
            jobs.extend(_folder(path, each=each, attempt=attempt))
        else:
            _check(path)
            log = log_file(path, origin_of_path(os.path.basename(path)), named=True)
            jobs.append((path, None, JobEvidence(logs=(log,))))
    return jobs


def file_chunks(path: str, *, named: bool = False) -> Iterator[bytes]:
    """Yield a file's bytes in chunks, opening it lazily. If `named` is true, the user gave the path and it may be a pipe."""
    seen = 0
    is_pipe = named and stat.S_ISFIFO(os.stat(path).st_mode)
    READING.path, READING.seen = path, 0
    with open(path, "rb", buffering=0) if is_pipe else open_regular(path) as file:
        while chunk := file.read(window_bytes(seen)):
            seen += len(chunk)
            READING.seen = seen
            yield chunk


def log_file(path: str, origin: Origin = NOWHERE, *, named: bool = False) -> LogSource:
    """Return a log source for a file."""
    return LogSource(path, file_chunks(path, named=named), origin)


def _stdin_chunks() -> Iterator[bytes]:
    stream = sys.stdin.buffer.fileno()
    READING.path = "-"
    while True:
        wait_while_read(None, stream)
        if not (chunk := os.read(stream, 1 << 20)):
            break
        READING.seen += len(chunk)
        yield chunk


def _refuse_own_files(path: str) -> None:
    """Raise BadInputError for stoker's own files that are not job logs, such as part of a run or a folder of runs."""
    from supervisor.run.paths import is_run_directory

    real = Path(os.path.realpath(path))
    run = next(filter(is_run_directory, real.parents), None)
    if run is not None and not {"attempts", "artifacts"} & set(real.relative_to(run).parts):
        raise BadInputError(f"{path}: a part of the run {run.name}, and no log of its job: give the run")
    if run is None and real.is_dir() and not is_run_directory(real):
        runs = sorted(child.name for child in real.iterdir() if is_run_directory(child))
        if runs:
            raise BadInputError(f"{path}: a folder of {len(runs)} runs: give one, such as {runs[-1]}")


def _check(path: str) -> None:
    if _DUMP_NAME.search(path) and _is_dump(path):
        raise BadInputError(
            f"{path}: the flight-recorder dump of one rank; give the folder: only the dumps of all show who did not come"
        )
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):
            open_regular(path).close()
    except OSError as error:
        raise BadInputError(
            f"{path}: {error.strerror or error}; give a log, a folder of logs, or -"
        ) from error


def _folder(path: str, *, each: bool, attempt: int | None) -> list[tuple[str, int | None, JobEvidence]]:
    chosen, inner = _attempt_of(path, attempt)
    files = _walk(inner)
    logs, recorder = files["log"], _recorder(files["dump"])
    if not logs and recorder is None:
        raise BadInputError(
            f"{path}: no log in this folder; give a log, or the folder that torchrun's --log-dir names"
        )
    if each and logs:
        return [(name, None, JobEvidence(logs=(log_file(name, origin_of_path(name)),))) for name in logs]
    job = evidence_of(inner, logs, files["record"])
    if chosen is not None:
        recorded = _recorded(RunPaths(Path(path)), chosen)
        own = tuple(log._replace(chunks=file_chunks(log.path)) for log in recorded.logs)
        job = recorded._replace(logs=own or job.logs)  # an observed run's own logs lie elsewhere
    return [(path, chosen, job._replace(recorder=recorder))]


def _recorded(run: RunPaths, attempt: int) -> JobEvidence:
    """Return the evidence that an attempt left in a run directory. If a file is damaged, the intact part is used."""
    from supervisor.keeper.planning.attempt_evidence import NodeAttempt, recorded_evidence
    from supervisor.preflight.network import free_port
    from supervisor.run.journal import read_state
    from supervisor.run.runfile import BadRunFile, read_run_file
    from supervisor.run.state import AttemptState

    attempts, unknown = [], []
    for number in run.nodes():
        node, state = run.node(number), read_state(run.node(number).journal)
        if (view := state.find(attempt)) is not None:
            attempts.append(NodeAttempt(number, node, state, view))
        elif node.attempt(attempt).root.exists():  # its journal is damaged, but its logs may be read
            unknown.append(NodeAttempt(number, node, state, AttemptState(number=attempt, planned_t=0.0)))
    attempts += unknown
    if not attempts:  # the attempt left nothing
        return JobEvidence(logs=())
    record = None
    with contextlib.suppress(BadRunFile):  # an observed run has no run file
        record = read_run_file(run.run_json)
    found = recorded_evidence(attempts, record.job if record is not None else None, run_root=str(run.root))
    if record is not None and record.host == socket.gethostname():
        with contextlib.suppress(JobError):
            found = found._replace(run_values=found.run_values._replace(free_port=free_port()))
    return found


def evidence_of(root: Sequence[str], logs: Iterable[str], records: Iterable[str]) -> JobEvidence:
    """Build one job's evidence from its files. Console logs come before per-rank logs."""
    ordered = sorted(logs, key=lambda name: (1 if re.search(r"attempt_\d+", name) else 0, name))
    origins = {name: origin_of_path(_inside(name, root)) for name in ordered}
    nameless = [name for name, o in origins.items() if (o.rank, o.local_rank, o.node) == (None, None, None)]
    for name, task in tasks_of(nameless).items():
        origins[name] = origins[name]._replace(task=task)
    sources = tuple(log_file(name, origins[name]) for name in ordered)
    ranks = {source.origin.local_rank for source in sources if source.origin.local_rank is not None}
    nodes = {source.origin.node for source in sources if source.origin.local_rank is not None}
    per_node = max(ranks) + 1 if ranks else None
    return JobEvidence(
        logs=sources,
        machine=MachineRecords(slurm_state=_slurm_state(records)),
        ranks_per_node=per_node,
        world_size=per_node * len(nodes) if per_node and nodes else None,
    )


def _recorder(files: Sequence[str]) -> SeenRecorder | None:
    """Return the hang shown by any flight-recorder dumps among these files, or None if they show none."""
    if not files:
        return None
    from supervisor.diagnosis.hang.stuck_collectives import ranks_at_fault, stuck_collectives, stuck_text
    from supervisor.sources.stacks.collective_records import DumpFiles, dumps_of_job

    paths = dumps_of_job(files)
    stuck = stuck_collectives(DumpFiles(paths))
    if not stuck:
        return None
    ranks = ranks_at_fault(stuck)
    first = ranks[0] if ranks else stuck[0].came[0]
    return SeenRecorder(ranks, stuck_text(stuck), str(paths[first]), at_start=stuck[0].seq == 1)


def tasks_of(paths: Sequence[str]) -> dict[str, int]:
    """Map each log to the number that distinguishes its name: 0 and 1 for ``4711_0.out`` and ``4711_1.out`` (SLURM's `%j_%n`)."""
    groups: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    for path in paths:
        parts = re.split(r"(\d{1,9})", path)
        groups.setdefault(tuple(parts[::2]), []).append((path, parts[1::2]))
    found: dict[str, int] = {}
    for group in groups.values():
        columns = list(zip(*(numbers for _, numbers in group), strict=True))
        telling = [n for n, column in enumerate(columns) if len(set(column)) > 1]
        if len(telling) != 1:
            continue
        tasks = {path: int(numbers[telling[0]]) for path, numbers in group}
        # Tasks count from 0. Job numbers and rotation numbers do not.
        if 0 in tasks.values() and len(set(tasks.values())) == len(tasks):
            found |= tasks
    return found


def _inside(name: str, roots: Sequence[str]) -> str:
    for root in roots:
        if name.startswith(root):
            return os.path.relpath(
                name, os.path.dirname(root.rstrip("/")) if os.path.basename(root).startswith("node") else root
            )
    return name


def _walk(roots: Sequence[str]) -> dict[str, list[str]]:
    """Group a job's files by kind: `log`, a scheduler's `record`, or a flight recorder's `dump`."""
    found: dict[str, list[str]] = {"log": [], "record": [], "dump": []}
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
            for name in sorted(names):
                path = os.path.join(folder, name)
                if len(found["log"]) < MOST_FILES and (kind := _kind_of(path, name)):
                    found[kind].append(path)
    if not found["log"]:
        found["log"] = [path for root in roots for path in _any_text(root) if path not in found["dump"]]
    # Keep only the last of torchrun's own restarts in one tree, because the earlier ones were restarted.
    number = {path: re.search(r"[/\\]attempt_(\d+)[/\\]", path) for path in found["log"]}
    last = max((whole(match[1]) for match in number.values() if match), default=0)
    found["log"] = [path for path, match in number.items() if not match or whole(match[1]) == last]
    return found


def _kind_of(path: str, name: str) -> str:
    """Return a file's kind from its name and, for a dump, its first bytes, or "" for any other file."""
    if _DUMP_NAME.search(name) and _is_dump(path):
        return "dump"
    if _RECORDS.match(name):
        return "record"
    is_log = name not in {"keeper.log", "events.jsonl"} and not _NOT_LOGS.search(name)
    return "log" if is_log and _LOG_NAMES.search(name) and os.path.isfile(path) else ""


def _is_dump(path: str) -> bool:
    from supervisor.sources.stacks.collective_records import rank_of_dump

    return rank_of_dump(path) is not None


def _any_text(root: str) -> list[str]:
    """Return plain-text files at the top of a folder, for use when no file name looks like a log."""
    found = []
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        if os.path.isfile(path) and "." not in name:
            with open_regular(path) as file:
                if b"\0" not in file.read(4096):
                    found.append(path)
    return found


def _attempt_of(path: str, attempt: int | None) -> tuple[int | None, list[str]]:
    """Return the folders to read: for a run directory, those of one attempt on all nodes; otherwise, the folder itself."""
    folders: dict[int, list[str]] = {}
    for folder in sorted(glob.iglob(os.path.join(glob.escape(path), "nodes", "*", "attempts", "*"))):
        if (name := os.path.basename(folder)).isdecimal():
            folders.setdefault(int(name), []).append(folder)
    if not folders:
        if attempt is not None:
            raise BadInputError(
                f"{path}: not a run directory, so it has no attempt {attempt}; leave --attempt away"
            )
        return None, [path]
    chosen = attempt if attempt is not None else max(folders)
    if chosen not in folders:
        raise BadInputError(f"{path}: no attempt {chosen}; there are {', '.join(map(str, sorted(folders)))}")
    return chosen, folders[chosen]


def _slurm_state(records: Iterable[str]) -> str | None:
    for name in records:
        try:
            text = read_regular(name, 65536).decode("utf-8", "replace")
        except OSError:
            continue
        if state := state_in(text, by_sacct="sacct" in os.path.basename(name)):
            return state
    return None


def refuse_binary(path: str) -> None:
    """Raise BadInputError if a file's first uncompressed bytes are not text. Ignore leading zeros left by truncation."""
    with open_regular(path) as file:
        hole = file.read(HEAD_BYTES)
        try:
            file.seek(0 if hole.strip(b"\0") else os.lseek(file.fileno(), 0, os.SEEK_DATA))
        except OSError:
            return  # the file starts with a hole only
        head = next(plain_chunks(iter(lambda: file.read(HEAD_BYTES), b"")), b"")
    if is_binary(head[:HEAD_BYTES]):
        raise BadInputError(f"{path}: a binary file, not a log; give a log, a folder of logs, or -")
