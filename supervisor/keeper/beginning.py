"""The first facts of an observed run: which logs there are.

They are written before anything that reads them is loaded, so that a screen beside can show a log's last lines
while the reader of metrics and causes is still on its way.
"""

from __future__ import annotations

import os

from supervisor import __version__
from supervisor.keeper.clock import Clock
from supervisor.keeper.target import PIPE_NAME, ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter
from supervisor.run.lock import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from supervisor.sources.processes import ProcessId, identify

ATTEMPT = 1


class Beginning:
    """The run directory of an observer, locked and begun.

    Args:
        run: the claimed run directory.
        target: what is observed; whether its logs are still written need not be known yet.
        host: this machine's name.
        clock: gives the facts' time.

    Raises:
        OSError: the run directory cannot be written.
    """

    def __init__(self, run: RunPaths, target: Target, *, host: str, clock: Clock) -> None:
        self.node = run.node()
        for folder in (self.node.root, run.control, run.artifacts, self.node.attempt(ATTEMPT).root):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._me = identify(os.getpid()) or ProcessId(os.getpid(), 0.0)
        self.lock = KeeperLock(self.node.lock, start_time=self._me.start_time)
        self.journal = JournalWriter(self.node.journal)
        self.state = RunState()
        self._write(run, target, host, clock.wall())

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal and fold a fact."""
        self.journal.append(event, durable=durable)
        self.state = fold(self.state, event)

    def path_of(self, index: int, log: ObservedLog) -> str:
        """Where a log can be read as it is: itself, or its plain copy."""
        if not log.packed:
            return log.path
        name = os.path.basename(log.path).removesuffix(".gz")
        return str(self.node.attempt(ATTEMPT).root / f"{index}-{name}")

    def _write(self, run: RunPaths, target: Target, host: str, now: float) -> None:
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
        me = self._me
        self.emit(ev.KeeperStarted(t=now, pid=me.pid, start_time=me.start_time, version=__version__))
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
        if target.pipe is not None:
            path = str(self.node.attempt(ATTEMPT).root / PIPE_NAME)
            self.emit(ev.RankStarted(t=now, attempt=ATTEMPT, local_rank=0, stdout=path))
