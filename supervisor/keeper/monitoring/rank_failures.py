"""Identifies the first failing rank once its process has exited, long before the launcher exits and the verdict is in.

An error in a log is not a failure, because scripts also print exceptions that they handled. The exit code of the
rank's process shows that the rank failed, and the last error it wrote shows why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import Observation, RankGone, Reported, StepSeen
from supervisor.run import events as ev
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.processes import ExitWatch, ProcessId, exit_code_of, is_alive

FRESH_S = 15.0
"""An error older than this (in seconds) does not explain an exit. atexit functions (e.g. tracker uploads) run first."""
STEP_AFTER_S = 0.5
"""A step logged this many seconds after an error shows that the script handled the error."""


class RankFailures:
    """Finds the first failing rank of each successive attempt. Used only by the keeper's single thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Begin a new attempt."""
        self._errors: dict[int | None, tuple[float, ev.EvidenceSeen]] = {}
        """For each rank (None if unknown), when its recent errors began and the latest of them."""

    def observe(self, seen: Observation) -> None:
        """Record an error that a rank logged, or a step that follows one."""
        if isinstance(seen, Reported) and isinstance(error := seen.event, ev.EvidenceSeen):
            began_t, _ = self._errors.get(error.rank, (float("-inf"), error))
            self._errors[error.rank] = (began_t if error.t - began_t <= FRESH_S else error.t), error
        elif isinstance(seen, StepSeen) and self._errors:
            for rank in [seen.rank] if seen.rank is not None else list(self._errors):
                if rank in self._errors and seen.t - self._errors[rank][1].t > STEP_AFTER_S:
                    del self._errors[rank]

    def look(self, view: AttemptState) -> ev.RankFailing | None:
        """Return the failing rank whose errors began first, or None if there is none or it was already returned."""
        if view.failing is not None:
            return None
        now = self._clock.wall()
        found: list[tuple[float, ev.RankFailing]] = []
        for rank in view.ranks.values():
            if not rank.exited or not rank.exit_code:
                continue
            name = rank.rank if rank.rank is not None else rank.local_rank
            began_t, error = self._errors.get(name) or self._errors.get(None) or (now, None)
            if error is not None and now - error.t > FRESH_S:
                began_t, error = now, None
            failing = ev.RankFailing(
                t=now,
                attempt=view.number,
                local_rank=rank.local_rank,
                sign=ev.FailureSign.GONE,
                rank=rank.rank,
                exit_code=rank.exit_code,
                failure=error.failure if error is not None else None,
                text=error.text.strip()[:400] if error is not None else "",
                path=error.path if error is not None else "",
                line=error.line if error is not None else None,
            )
            found.append((began_t, failing))
        return min(found, key=lambda one: one[0])[1] if found else None


# -- the ranks of a job that stoker did not start ------------------------------------------------------

SETTLE_S = 3.0
"""Errors read this soon after startup (in seconds) may be of any age, so they do not explain a process's exit."""
CODE_WAIT_S = 0.2


class RankEnds:
    """Reports how the watched processes exit and reports each failure as it happens, just as in a run that stoker started.

    Args:
        processes: the ranks' processes, with their ranks.
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
        """Exit codes keyed by rank, for ranks whose exit was seen before their parent reaped them."""
        return self._codes

    def observe(self, seen: Observation) -> None:
        """Process an observation if it is relevant."""
        if isinstance(seen, RankGone) and seen.exit_code is not None:
            self._codes[seen.local_rank] = seen.exit_code
        elif not isinstance(seen, Reported) or self._clock.mono() >= self._settled:
            self._failures.observe(seen)

    def look(self, state: RunState) -> None:
        """Journal the ranks that have exited or failed."""
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
            self._emit(
                ev.RankExited(t=self._clock.wall(), attempt=view.number, local_rank=rank, exit_code=code)
            )
        if (failing := self._failures.look(view)) is not None:
            self._emit(failing)

    def close(self) -> None:
        """Stop waiting for the processes."""
        self._exits.close()
