"""How the processes end that an observer watches, and that one of them fails: told at once, as for a run of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from supervisor.keeper.clock import Clock
from supervisor.keeper.monitoring.observations import EvidenceHit, Observation, RankGone
from supervisor.keeper.monitoring.rank_failures import RankFailures
from supervisor.keeper.observer.start_observed import ATTEMPT
from supervisor.run import events as ev
from supervisor.run.state import RunState
from supervisor.sources.processes import ExitWatch, ProcessId, exit_code_of, is_alive

SETTLE_S = 3.0
"""What stands in a log when it is first read was written at any time: errors that are read sooner explain no end."""
CODE_WAIT_S = 0.2


class RankEnds:
    """Used by the observer's one thread.

    Args:
        processes: the ranks' processes by rank.
        put: takes what is seen in another thread, for `observe`.
        emit: journals a fact.
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
        self._told: set[int] = set()
        self._exits = ExitWatch(lambda rank, code: put(RankGone(clock.wall(), rank, code)))
        for rank, process in self._processes.items():
            self._exits.watch(rank, process)

    @property
    def codes(self) -> Mapping[int, int]:
        """Exit codes by rank, of those whose end was seen before their parent took it."""
        return self._codes

    @property
    def is_urgent(self) -> bool:
        """Whether one may be about to fail."""
        return bool(self._processes) and self._failures.is_urgent

    def observe(self, seen: Observation) -> None:
        """What bears on it."""
        if isinstance(seen, RankGone) and seen.exit_code is not None:
            self._codes[seen.local_rank] = seen.exit_code
        elif not isinstance(seen, EvidenceHit) or self._clock.mono() >= self._settled:
            self._failures.observe(seen)

    def look(self, state: RunState) -> None:
        """Journal who has ended, and who fails."""
        view = state.attempt
        if view is None or not self._processes:
            return
        now = self._clock.mono()
        for rank, process in self._processes.items():
            if rank in self._told or is_alive(process):
                continue
            code = self._codes.get(rank, exit_code_of(process))
            if code is None and now - self._vanished.setdefault(rank, now) < CODE_WAIT_S:
                continue
            self._told.add(rank)
            if code is not None:
                self._codes[rank] = code
            self._emit(ev.RankExited(t=self._clock.wall(), attempt=ATTEMPT, local_rank=rank, exit_code=code))
        told = self._failures.look(view, self._processes)
        if told is not None:
            self._emit(told)

    def close(self) -> None:
        """Wait for nobody any more."""
        self._exits.close()
