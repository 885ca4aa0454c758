"""Paths of everything in a run directory. Only this module knows the file names.

Layout (docs/run-directory.md)::

    <runs>/<run-id>/            mode 0700
      run.json  control/  artifacts/
      nodes/<k>/events.jsonl  state.json  series/  attempts/<n>/  keeper.lock  keeper.log
      nodes/<k>/heartbeat  report.json      multi-node runs only; node 0 also has orders/<seq>.json, order.json
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.text.patterns import Lazy

RUN_SCHEMA = 1
"""Schema version of run.json. Bumped when an older stoker could no longer handle a run correctly."""
THROWN = "thrown"
_NODE = r"nodes/\d+/(probes/\d+/)?"
_ATTEMPT = r"nodes/\d+/((probes/\d+/)?attempts|probes)/\d+/"
# The names of all files that stoker, its ranks and torchrun write into each folder of a run. `stoker gc` deletes nothing else.
_RECORDS = {
    "": rf"run\.json|{THROWN}",
    "control/": r"[0-9a-f]{24}(\.json)?|viewer-\d+@[^/]+",
    "artifacts/": r"(stacks-\d+-\d+(-\d+)?\.txt|console-\d{8}-\d{6}(-node\d+)?\.log|trace-step\d+-rank\d+\.json)",
    _NODE: r"events\.jsonl|keeper\.(lock|log)|heartbeat|(state|report|order)\.json",
    r"nodes/\d+/orders/": r"\d+\.json",
    _NODE + "series/": r"(gpu|host|metrics|ranks)(\.1m)?(\.0)?\.jsonl",
    _ATTEMPT: r"plan\.json|pid|exit|growth\.json|arrivals\.jsonl|stop|profile|(agent|stdin)\.log|\d+-[^/]+\.(log|out|err|txt)",
    _ATTEMPT + "telemetry/": r"(rank|measured)\d+\.jsonl(\.1)?|batches\d+\.jsonl|confirmed|instrument\.log",
    _ATTEMPT + "stacks/": r"\d+\.txt",
    _ATTEMPT + r"torchrun/[^/]+/attempt_\d+/\d+/": r"std(out|err)\.log|error\.json",
}
_WHOLE_OR_NOT = r"{0}(({1})(\.part)?|\.({1})\.([0-9a-f]{{8}}|(\d+\.)?part))"
RECORD = Lazy("|".join(_WHOLE_OR_NOT.format(*each) for each in _RECORDS.items()))


@dataclass(frozen=True)
class _Folder:
    root: Path


class _Below:
    """A descriptor that returns the path of this name inside the folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: _Folder, _kind: type) -> Path:
        return folder.root / self._name


class AttemptPaths(_Folder):
    """Files of one attempt on one node."""

    plan = _Below("plan.json")  # The launch plan, as JSON
    # The launcher's exit status, written by a tiny launcher so that it survives the keeper
    exit = _Below("exit")
    agent_log = _Below("agent.log")  # stdout and stderr of torchrun itself (or of the command)
    arrivals = _Below("arrivals.jsonl")  # The arrival times of the logs' bytes, by batch (`run.arrivals`)
    telemetry = _Below("telemetry")  # Folder of rank<r>.jsonl, written by a trainer that sends telemetry
    # torchrun's --log-dir: <run-id>_<random>/attempt_0/<local rank>/{stdout,stderr}.log
    torchrun = _Below("torchrun")
    stop_file = _Below("stop")  # If it exists, a trainer that supports it saves a checkpoint and exits
    profile_file = _Below("profile")  # When it is touched, a trainer that supports it traces its next steps

    def rank_folders(self) -> dict[int, Path]:
        """Return torchrun's folder for each local rank, as found on disk. The newest tree wins."""
        found: dict[int, Path] = {}
        with contextlib.suppress(FileNotFoundError):  # logs may be deleted right now
            for tree in sorted(self.torchrun.glob("*/attempt_*"), key=lambda p: p.stat().st_mtime_ns):
                found |= {int(p.name): p for p in tree.iterdir() if p.name.isdecimal() and p.is_dir()}
        return dict(sorted(found.items()))

    def logs(self) -> list[Path]:
        """Return the agent's log and both streams of every rank that has a folder. Some may not exist."""
        ranks = self.rank_folders().values()
        return [
            self.agent_log,
            *(folder / f"{name}.log" for folder in ranks for name in ("stdout", "stderr")),
        ]


class NodePaths(_Folder):
    """Files of one node, written only by its keeper."""

    journal = _Below("events.jsonl")  # The node's events
    # The folded state of a prefix of the journal, which makes readers faster (`run.journal`)
    snapshot = _Below("state.json")
    series = _Below("series")  # Folder of samples
    lock = _Below("keeper.lock")  # Locked by flock while a keeper is alive; contains its pid and start time
    log = _Below("keeper.log")  # The keeper's own log
    heartbeat = _Below("heartbeat")  # A number that grows while the node's keeper is alive
    report = _Below("report.json")  # The node's report to the leader
    order = _Below("order.json")  # The leader's newest order, only on node 0
    orders = _Below("orders")  # Folder of all orders, named by number

    def attempt(self, number: int) -> AttemptPaths:
        """Return the files of attempt `number`, counted from 1."""
        return AttemptPaths(self.root / "attempts" / str(number))

    def probe(self, number: int) -> NodePaths:
        """Return the files of a probe (a short launch before the first attempt), counted from 1: a journal and one attempt."""
        return NodePaths(self.root / "probes" / str(number))


class RunPaths(_Folder):
    """The paths in a run directory."""

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.root.name

    run_json = _Below("run.json")  # The resolved job
    control = _Below("control")  # Requests from viewers
    artifacts = _Below("artifacts")  # Stacks, dumps, reports

    def node(self, number: int = 0) -> NodePaths:
        """Return the files of node `number`."""
        return NodePaths(self.root / "nodes" / str(number))

    def nodes(self) -> list[int]:
        """Return the numbers of the nodes that have written to this run."""
        folder = self.root / "nodes"
        if not folder.is_dir():
            return []
        return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def xdg_home(env: Mapping[str, str], kind: str, below_home: str) -> str:
    """Return the user's XDG folder of a kind (``STATE``, ``CONFIG``, ``CACHE``). Relative paths are ignored, as specified."""
    named = env.get(f"XDG_{kind}_HOME", "")
    return (
        named
        if os.path.isabs(named)
        else os.path.join(env.get("HOME") or os.path.expanduser("~"), below_home)
    )


def is_run_directory(path: str | Path) -> bool:
    """Check whether a keeper has written a journal under `path`."""
    if os.path.isfile(f"{path}/nodes/0/events.jsonl"):  # not a pipe, which would block the reader
        return True
    return any(journal.is_file() for journal in Path(path).glob("nodes/*/events.jsonl"))


def make_private(folder: Path, mode: int = 0o700) -> None:
    """Create a folder and its missing parents, accessible only to the owner (or as `mode` says) whatever the umask.

    Raises:
        OSError: the folder cannot be created.
    """
    if not folder.is_dir():
        make_private(folder.parent, mode)
        folder.mkdir(mode=mode, exist_ok=True)


def make_own(folder: Path) -> None:
    """Create a private folder inside a run, where the job may have planted a link.

    Raises:
        OSError: the folder cannot be created, or is a link.
    """
    make_private(folder)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "a link, which is not followed", str(folder))


def private(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Open a file that only its owner may read, whatever the umask. Raise OSError for a link."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read. The file is on disk when this returns.

    Raises:
        OSError: the file cannot be written.
    """
    with open(path, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's content atomically. If that fails, the old content stays.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_whole(part, data)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
