"""What an observer watches: logs, a pipe or processes, and the first events of an observed run, which list its logs.

These events are written before the modules that read logs are loaded, so the TUI opens at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from supervisor import __version__
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.base.ledger import Ledger
from supervisor.run import events as ev
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths, make_private, private
from supervisor.run.regular import open_regular
from supervisor.sources.processes import ProcessId, identify, is_alive, writers_of
from supervisor.text.decode import clean
from supervisor.text.prefixes import NOWHERE, Origin
from supervisor.text.redact import Redactor
from supervisor.text.stamps import Span, span_of

ATTEMPT = 1
PIPE_NAME = "stdin.log"
LARGE_BYTES = 4 << 20
"""Logs of at least this many bytes count as a backlog. Reading that much takes a quarter of a second."""
LOOKED_AT_BYTES, LOOKED_AT_LINES = 1 << 16, 400
"""How much of a log's head and tail is searched for clock times or for typical training output."""
END_BYTES = 1 << 20
"""How much of a large log's tail is judged before the rest is read."""
PIPE_BYTES = 1 << 18
PIPE_WAIT_S = 0.1
LOOK_S = 1.0

log = logging.getLogger("stoker.keeper")


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """A log to watch: its absolute path, display name and rank.

    `packed` is the gzip or UTF-16 log that `path` is a plain copy of, or empty if the log is read in place.
    """

    path: str
    name: str
    origin: Origin = NOWHERE
    packed: str = ""

    @property
    def written(self) -> str:
        """The file whose modification time is used for the log."""
        return self.packed or self.path


@dataclass(frozen=True, slots=True)
class Target:
    """What an observer watches.

    `pipe` is a file descriptor to read until EOF. `processes` lists the processes by rank (or a single one under 0);
    the run has ended once all of them have exited. `ended` means that no process here is writing these logs. `unseen`
    is what cannot be seen from here; `cut` is why a log is incomplete. Both messages are shown to the user.
    """

    name: str
    source: str
    logs: Sequence[ObservedLog] = ()
    pipe: int | None = None
    processes: tuple[tuple[int, ProcessId], ...] = ()
    ended: bool = False
    unseen: str = ""
    cut: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The logs that are read in place."""
        return tuple(log.path for log in self.logs if not log.packed)

    @property
    def is_copy(self) -> bool:
        """Whether any log is read from a plain copy, which is not followed."""
        return any(log.packed for log in self.logs)

    @property
    def backlog_bytes(self) -> int:
        """The size in bytes of a backlog that takes a while to read, or 0 if reading takes only a moment."""
        size_bytes = 0
        for log in self.logs:
            with contextlib.suppress(OSError):
                size_bytes += os.stat(log.path).st_size
        return size_bytes if size_bytes >= LARGE_BYTES else 0


class ObservedRun:
    """An observer's run directory, which is locked and has a journal that begins with the list of logs.

    Args:
        run: the claimed run directory.
        target: what is observed. Whether its logs are still being written may not be known yet.
        host: this machine's name.
        clock: supplies the event times.

    Raises:
        OSError: the run directory cannot be written.
    """

    def __init__(self, run: RunPaths, target: Target, *, host: str, clock: Clock) -> None:
        self.run, self.node, self.clock = run, run.node(), clock
        for folder in (self.node.root, run.control, run.artifacts, self.node.attempt(ATTEMPT).root):
            make_private(folder)
        me = identify(os.getpid()) or ProcessId(os.getpid(), 0.0)
        self.lock = KeeperLock(self.node.lock, start_time=me.start_time)
        self.ledger = Ledger(self.node, Redactor.of(os.environ.items()))
        for fact in _opening(run, target, host, me, clock.wall()):
            self.ledger.emit(fact)

    def close(self) -> None:
        """Close the journal and release the lock."""
        self.ledger.close()
        self.lock.release()


def _opening(run: RunPaths, target: Target, host: str, me: ProcessId, now: float) -> Iterator[ev.Event]:
    yield ev.RunStarted(
        t=now,
        run_id=run.run_id,
        name=target.name,
        mode="observed",
        host=host,
        source=target.source,
        world_size=len(target.processes) or None,
    )
    yield ev.KeeperStarted(t=now, pid=me.pid, start_time=me.start_time, version=__version__)
    yield ev.LaunchIntended(t=now, attempt=ATTEMPT, argv=(), reason=f"watching {target.source}")
    first = target.processes[0][1] if target.processes else ProcessId(0, 0.0)
    yield ev.AttemptStarted(t=now, attempt=ATTEMPT, pid=first.pid, start_time=first.start_time)
    for index, log in enumerate(target.logs):
        rank = log.origin.rank if log.origin.rank is not None else log.origin.local_rank
        local_rank = rank if rank is not None else index
        found = ev.RankStarted(t=now, attempt=ATTEMPT, local_rank=local_rank, rank=rank)
        is_stderr = log.origin.stream == "stderr"
        yield replace(found, stderr=log.path) if is_stderr else replace(found, stdout=log.path)
    for rank, process in target.processes:
        pid, start_time = process.pid, process.start_time
        yield ev.RankStarted(
            t=now, attempt=ATTEMPT, local_rank=rank, rank=rank, pid=pid, start_time=start_time
        )
    if size_bytes := target.backlog_bytes:
        yield ev.Progress(t=now, attempt=ATTEMPT, lag_bytes=size_bytes, log_bytes=size_bytes)
    if target.pipe is not None:
        path = str(run.node().attempt(ATTEMPT).root / PIPE_NAME)
        yield ev.RankStarted(t=now, attempt=ATTEMPT, local_rank=0, stdout=path)
    if target.unseen:
        yield ev.Advisory(t=now, attempt=ATTEMPT, code="unseen", text=target.unseen)


# -- the beginning and end of a log, which are read first: its times and its last lines -----------------------


def end_of(log: ObservedLog) -> Iterator[bytes]:
    """Yield the tail of a large log, or all of a small one."""
    with open_regular(log.path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > END_BYTES:
            file.seek(size - END_BYTES)
            file.readline()  # a partial line
        yield file.read(END_BYTES)


def both_ends(log: ObservedLog) -> tuple[list[str], list[str]]:
    """Return the first and last few lines of a log.

    Raises:
        OSError: the log cannot be read.
    """
    with open_regular(log.path) as file:
        size = os.fstat(file.fileno()).st_size
        head = os.pread(file.fileno(), LOOKED_AT_BYTES, 0)
        tail = os.pread(file.fileno(), LOOKED_AT_BYTES, max(size - LOOKED_AT_BYTES, 0))
    first = [clean(raw) for raw in head.splitlines()[:LOOKED_AT_LINES]]
    return first, [clean(raw) for raw in tail.splitlines()[-LOOKED_AT_LINES:]]


def last_written_t(logs: Iterable[ObservedLog]) -> float:
    """Return when the most recent log was last modified, in wall seconds, or 0 if there is none."""
    times = []
    for log in logs:
        with contextlib.suppress(OSError):
            times.append(os.stat(log.written).st_mtime)
    return max(times, default=0.0)


def span_of_logs(logs: Iterable[ObservedLog]) -> Span | None:
    """Return the first and last times (wall seconds) in a job's logs, or None if they contain no times."""
    spans = []
    for log in logs:
        with contextlib.suppress(OSError):
            written_t = os.stat(log.written).st_mtime
            if (span := span_of(*both_ends(log), written_t, log.written)) is not None:
                spans.append(span)
    if not spans:
        return None
    return Span(
        min(span.began_t for span in spans),
        max(span.over_t for span in spans),
        all(span.is_dated for span in spans),
        all(span.is_copy for span in spans),
    )


# -- the end of a target, if its pipe or its logs' writers show it -------------------------------------


class PipeCopy:
    """Copies a pipe into a file in the run directory, using a thread. Views and verdicts read the file.

    Attributes:
        ended: whether the pipe has reached EOF.
        torn: whether writing the copy failed before EOF.
    """

    def __init__(self, fd: int, path: Path, stop: threading.Event) -> None:
        self.path = path
        self.ended = self.torn = False
        self._fd, self._stop = fd, stop
        self._thread = threading.Thread(target=self._copy, name="stoker-pipe")

    def start(self) -> None:
        """Start copying."""
        self.path.touch(mode=0o600)
        self._thread.start()

    def join(self) -> None:
        """Wait until the pipe ends or the observer stops."""
        self._thread.join()

    def _copy(self) -> None:
        try:
            with open(self.path, "ab", buffering=0, opener=private) as file:
                while not self._stop.is_set():
                    if not select.select([self._fd], [], [], PIPE_WAIT_S)[0]:
                        continue
                    data = os.read(self._fd, PIPE_BYTES)
                    if not data:
                        break
                    file.write(data)
        except OSError as error:
            self.torn = True
            log.error("%s: %s: the pipe is no longer copied", self.path, error.strerror)
        finally:
            self.ended = True


class Writers:
    """The processes on this machine that are writing the watched logs. Once all of them have exited, the job has ended.

    Writers on other machines (NFS), in containers, or owned by other users are invisible, so finding no writers
    proves nothing. A thread scans /proc at startup and again once the known writers have exited.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._search: Background[list[ProcessId]] = Background("stoker-log-writers")
        self._known: list[ProcessId] | None = None  # not searched yet
        self._due = float("-inf")
        self.gone = False
        """True if there were writers, all of them have exited, and no other process is writing."""

    def look(self, now: float) -> None:
        """Check which writers are left. `now` is in monotonic seconds."""
        if self.gone or not self._paths:
            return
        if self._search.busy:
            found = self._search.poll()
            if found is not None:
                self.gone = bool(self._known) and not found
                self._known = found
        elif now >= self._due:
            self._due = now + LOOK_S
            if self._known is None or (self._known and not any(map(is_alive, self._known))):
                self._search.start(self._look_for)

    def _look_for(self) -> list[ProcessId]:
        return [known for pid in writers_of(self._paths) if (known := identify(pid)) is not None]
