"""The first facts of an observed run: which logs there are.

They are written before anything that reads them is loaded, so that a screen can show a log's last lines while the
reader of metrics and causes is still on its way. That reader may be another process: it inherits the lock, which is
held without a gap, and writes on where the first left off. There is one writer at every moment.
"""

from __future__ import annotations

import contextlib
import os

from supervisor import __version__
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.base.ledger import Ledger
from supervisor.keeper.observer.target import PIPE_NAME, ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.state import RunState
from supervisor.sources.processes import ProcessId, identify
from supervisor.text.redact import Redactor

ATTEMPT = 1
LARGE_BYTES = 4 << 20
"""Of this much the numbers take a quarter of a second to read."""


class ObservedRun:
    """The run directory of an observer, locked and begun.

    Args:
        run: the claimed run directory.
        lock: held from here on.
    """

    def __init__(self, run: RunPaths, lock: KeeperLock) -> None:
        self.node = run.node()
        self.lock = lock
        self.ledger = Ledger(self.node, Redactor.of(os.environ.items()))

    @property
    def state(self) -> RunState:
        """What the journal says so far."""
        return self.ledger.state

    @classmethod
    def fresh(cls, run: RunPaths, target: Target, *, host: str, clock: Clock) -> ObservedRun:
        """Begin: lock the directory and write which logs there are.

        Args:
            run: the claimed run directory.
            target: what is observed; whether its logs are still written need not be known yet.
            host: this machine's name.
            clock: gives the facts' time.

        Raises:
            OSError: the run directory cannot be written.
        """
        node = run.node()
        for folder in (node.root, run.control, run.artifacts, node.attempt(ATTEMPT).root):
            make_private(folder)
        me = _me()
        made = cls(run, KeeperLock(node.lock, start_time=me.start_time))
        made._write(run, target, host, me, clock.wall())
        return made

    @classmethod
    def inherited(cls, run: RunPaths, lock_fd: int, *, clock: Clock) -> ObservedRun:
        """Go on with what another process began and handed over.

        Args:
            run: the run directory.
            lock_fd: what `hand_over` gave there, inherited.
            clock: gives the facts' time.

        Raises:
            OSError: the run directory is gone, or cannot be written.
        """
        me, node = _me(), run.node()
        lock = KeeperLock(node.lock, start_time=me.start_time, inherited=lock_fd)
        made = cls(run, lock)
        made._tell_who(me, clock.wall())
        return made

    def hand_over(self) -> int:
        """Write no more; the lock's descriptor, for a child to inherit. Release the lock once there is one."""
        self.ledger.close()
        return self.lock.fileno()

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal and fold a fact."""
        self.ledger.emit(event, durable=durable)

    def path_of(self, index: int, log: ObservedLog) -> str:
        """Where a log can be read as it is: itself, or its plain copy."""
        if not log.packed:
            return log.path
        name = os.path.basename(log.path).removesuffix(".gz")
        return str(self.node.attempt(ATTEMPT).root / f"{index}-{name}")

    def _tell_who(self, me: ProcessId, now: float) -> None:
        self.emit(ev.KeeperStarted(t=now, pid=me.pid, start_time=me.start_time, version=__version__))

    def _write(self, run: RunPaths, target: Target, host: str, me: ProcessId, now: float) -> None:
        self.emit(
            ev.RunStarted(
                t=now,
                run_id=run.run_id,
                name=target.name,
                mode="observed",
                host=host,
                source=target.source,
                world_size=len(target.processes) or None,
            )
        )
        self._tell_who(me, now)
        self.emit(ev.LaunchIntended(t=now, attempt=ATTEMPT, argv=(), reason=f"watching {target.source}"))
        first = target.processes[0][1] if target.processes else ProcessId(0, 0.0)
        self.emit(ev.AttemptStarted(t=now, attempt=ATTEMPT, pid=first.pid, start_time=first.start_time))
        for index, log in enumerate(target.logs):
            rank = log.origin.rank if log.origin.rank is not None else log.origin.local_rank
            path, is_stderr = self.path_of(index, log), log.origin.stream == "stderr"
            self.emit(
                ev.RankStarted(
                    t=now,
                    attempt=ATTEMPT,
                    local_rank=rank if rank is not None else index,
                    rank=rank,
                    stdout=None if is_stderr else path,
                    stderr=path if is_stderr else None,
                )
            )
        for rank, process in target.processes:
            self.emit(
                ev.RankStarted(
                    t=now,
                    attempt=ATTEMPT,
                    local_rank=rank,
                    rank=rank,
                    pid=process.pid,
                    start_time=process.start_time,
                )
            )
        if size_bytes := backlog_bytes(target):
            self.emit(ev.Progress(t=now, attempt=ATTEMPT, lag_bytes=size_bytes, log_bytes=size_bytes))
        if target.pipe is not None:
            path = str(self.node.attempt(ATTEMPT).root / PIPE_NAME)
            self.emit(ev.RankStarted(t=now, attempt=ATTEMPT, local_rank=0, stdout=path))


def backlog_bytes(target: Target) -> int:
    """Bytes of the logs that were written before and take a while to read; 0 where that is a moment."""
    size_bytes = 0
    for log in target.logs:
        with contextlib.suppress(OSError):
            size_bytes += 0 if log.packed else os.stat(log.path).st_size
    return size_bytes if size_bytes >= LARGE_BYTES else 0


def _me() -> ProcessId:
    return identify(os.getpid()) or ProcessId(os.getpid(), 0.0)
