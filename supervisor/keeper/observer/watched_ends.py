"""Detect that a watched job has ended, from its pipe, its processes, or the processes that write its logs."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import Observation, RankGone, Reported
from supervisor.keeper.monitoring.rank_failures import RankFailures
from supervisor.keeper.observer.observed_run import ATTEMPT
from supervisor.run import events as ev
from supervisor.run.paths import private
from supervisor.run.state import RunState
from supervisor.sources.processes import ExitWatch, ProcessId, exit_code_of, identify, is_alive, writers_of

PIPE_BYTES = 1 << 18
PIPE_WAIT_S = 0.1
LOOK_S = 1.0
SETTLE_S = 3.0
"""Errors read within this time of the start may be of any age, so they do not explain a process's end."""
CODE_WAIT_S = 0.2

log = logging.getLogger("stoker.keeper")


class PipeCopy:
    """Copies a pipe into a file in the run directory, in a thread. Views and verdicts read the file.

    Attributes:
        ended: whether the pipe has ended.
        torn: whether writing the copy failed before the pipe's end.
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
        """Wait for the end of the pipe or of the observer."""
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
    """The processes on this machine that write the watched logs. Once all have exited, the job has ended.

    Writers on other machines (NFS), in containers or owned by other users are invisible, so finding no writers
    proves nothing. A thread scans /proc at the start and again once the known writers have exited.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._search: Background[list[ProcessId]] = Background("stoker-log-writers")
        self._known: list[ProcessId] | None = None  # not searched yet
        self._due = float("-inf")
        self.gone = False
        """Whether there were writers, all of them have exited, and no other process writes."""

    @property
    def seen(self) -> bool:
        """Whether any writer was found."""
        return bool(self._known)

    def look(self, now: float) -> None:
        """Check which writers are left. `now`: monotonic seconds."""
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


class RankEnds:
    """Reports how the watched processes end, and each failure at once, as for a run that stoker started.

    Args:
        processes: the ranks' processes by rank.
        put: receives observations from another thread, for `observe`.
        emit: journals an event.
    """

    def __init__(
        self,
        processes: Sequence[tuple[int, ProcessId]],
        put: Callable[[Observation], None],
        emit: Callable[[ev.Event], None],
        clock: Clock,
    ) -> None:
        self._processes = dict(processes)
        self._emit, self._clock = emit, clock
        self._failures = RankFailures(clock)
        self._settled = clock.mono() + SETTLE_S
        self._codes: dict[int, int] = {}
        self._vanished: dict[int, float] = {}
        self._reported: set[int] = set()
        self._exits = ExitWatch(lambda rank, code: put(RankGone(clock.wall(), rank, code)))
        for rank, process in self._processes.items():
            self._exits.watch(rank, process)

    @property
    def codes(self) -> Mapping[int, int]:
        """Exit codes by rank, for ranks whose end was seen before their parent reaped them."""
        return self._codes

    def observe(self, seen: Observation) -> None:
        """Process a relevant observation."""
        if isinstance(seen, RankGone) and seen.exit_code is not None:
            self._codes[seen.local_rank] = seen.exit_code
        elif not isinstance(seen, Reported) or self._clock.mono() >= self._settled:
            self._failures.observe(seen)

    def look(self, state: RunState) -> None:
        """Journal ranks that ended or failed."""
        view = state.attempt
        if view is None or not self._processes:
            return
        now = self._clock.mono()
        for rank, process in self._processes.items():
            if rank in self._reported or is_alive(process):
                continue
            code = self._codes.get(rank, exit_code_of(process))
            if code is None and now - self._vanished.setdefault(rank, now) < CODE_WAIT_S:
                continue
            self._reported.add(rank)
            if code is not None:
                self._codes[rank] = code
            self._emit(ev.RankExited(t=self._clock.wall(), attempt=ATTEMPT, local_rank=rank, exit_code=code))
        if (failing := self._failures.look(view)) is not None:
            self._emit(failing)

    def close(self) -> None:
        """Stop waiting for the processes."""
        self._exits.close()
