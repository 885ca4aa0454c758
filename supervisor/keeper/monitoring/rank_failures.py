"""Detects a failing rank as soon as its process shows it, long before its launcher ends and there is a verdict.

An error in a log is not a failure, because scripts also print exceptions that they handled. It is one once the rank's interpreter
shuts down afterwards (see `processes.catches`: 8 ms after the last line of an uncaught exception, while torch takes at least 0.5 s
more to exit), or once its process is gone. The process shows that the rank is failing, and its last error line says why.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import EvidenceLine, Observation, StepSeen
from supervisor.run import events as ev
from supervisor.run.regular import open_regular
from supervisor.run.state import AttemptState, RankState
from supervisor.sources.processes import ProcessId, catches, is_alive

FRESH_S = 15.0
"""An older error does not explain an exit. atexit functions, such as uploads of trackers, run before the interpreter shuts down."""
STEP_AFTER_S = 0.5
"""A step logged this much later than an error shows that the script handled the error."""
TAIL_BYTES = 1 << 16
IGNORED = (b"Exception ignored in", b"Exception in thread", b"--- Logging error ---")
FAST_S = 1.0
FAST_ERRORS = 50
"""After an error the process is checked every 20 ms for a moment, unless the job prints errors all the time."""
MOST_CHECKS = 100
"""How often to check whether a rank has its handler yet. An interpreter sets it within some 20 ms of its start, but never if it was
started with SIGINT ignored."""


class RankFailures:
    """Finds the first failing rank of one attempt after another. Used by the keeper's only thread."""

    def __init__(self, clock: Clock, log_of: Callable[[str], Path | None] = lambda _name: None) -> None:
        """`log_of`: the path of a log by its name."""
        self._clock, self._log_of = clock, log_of
        self.begin()

    def begin(self) -> None:
        """Another attempt."""
        self._first: dict[int | None, EvidenceLine] = {}
        self._last: dict[int | None, EvidenceLine] = {}
        self._errors = 0
        self._fast_until = float("-inf")
        self._caught: set[int] = set()
        self._ignored: set[EvidenceLine] = set()
        self._checks: Counter[int] = Counter()

    @property
    def is_urgent(self) -> bool:
        """Whether a rank may be about to fail because it just logged an error."""
        return self._clock.mono() < self._fast_until

    def observe(self, seen: Observation) -> None:
        """Note an error that a rank logged, or a step after it."""
        if isinstance(seen, EvidenceLine):
            known = self._first.get(seen.rank)
            if known is None or seen.t - known.t > FRESH_S:
                self._first[seen.rank] = seen
            self._last[seen.rank] = seen
            self._errors += 1
            if self._errors <= FAST_ERRORS:
                self._fast_until = self._clock.mono() + FAST_S
        elif isinstance(seen, StepSeen) and self._last:
            for name in [seen.rank] if seen.rank is not None else list(self._last):
                error = self._last.get(name)
                if error is not None and seen.t - error.t > STEP_AFTER_S:
                    del self._last[name], self._first[name]

    def look(
        self, view: AttemptState, ranks: Mapping[int, ProcessId], *, done: bool = False
    ) -> ev.RankFailing | None:
        """The first failing rank, once; None if there is none or it is known.

        `ranks`: processes by local rank. `done`: the job has made its last step, after which interpreters shut down anyway.
        """
        if view.failing is not None:
            return None
        now = self._clock.wall()
        found: list[tuple[float, ev.RankFailing]] = []
        for local_rank, process in ranks.items():
            known = view.ranks.get(local_rank, RankState(local_rank=local_rank))
            error = self._last.get(known.rank if known.rank is not None else local_rank, self._last.get(None))
            error = error if error is not None and now - error.t <= FRESH_S else None
            if known.exited:
                failed = known.exit_code != 0 if known.exit_code is not None else self._explains(error)
                sign = ev.FailureSign.GONE if failed else None
            elif error is not None or (
                local_rank not in self._caught and self._checks[local_rank] < MOST_CHECKS
            ):
                ends = self._shuts_down(local_rank, process) and self._explains(error) and not done
                sign = ev.FailureSign.EXITING if ends else None
            else:
                continue
            if sign is not None:
                first_t = self._first[error.rank].t if error is not None else now
                found.append((first_t, _event(now, view.number, known, sign, error)))
        return min(found, key=lambda one: one[0])[1] if found else None

    def _explains(self, error: EvidenceLine | None) -> bool:
        """Whether an error line can explain the end of a rank. Errors in a finalizer or thread cannot; Python says so in the line before."""
        if error is None or error in self._ignored:
            return False
        path = self._log_of(error.path)
        if path is not None and _was_ignored(path, error.text):
            self._ignored.add(error)
            return False
        return True

    def _shuts_down(self, local_rank: int, process: ProcessId) -> bool:
        """Whether a rank's interpreter has removed the SIGINT handler that it had."""
        self._checks[local_rank] += 1
        caught = catches(process.pid, signal.SIGINT)
        if caught:
            self._caught.add(local_rank)
        return caught is False and local_rank in self._caught and is_alive(process)


def _event(
    t: float, attempt: int, known: RankState, sign: ev.FailureSign, error: EvidenceLine | None
) -> ev.RankFailing:
    told = ev.RankFailing(
        t=t,
        attempt=attempt,
        local_rank=known.local_rank,
        sign=sign,
        rank=known.rank,
        exit_code=known.exit_code,
    )
    if error is None:
        return told
    text = error.text.strip()[:400]
    return replace(told, failure=error.failure, text=text, path=error.path, line=error.line)


def _was_ignored(path: Path, text: str) -> bool:
    """Whether Python printed the traceback of an error that it ignored, below ``Exception ignored in: …``."""
    try:
        with open_regular(path) as log:
            log.seek(max(os.fstat(log.fileno()).st_size - TAIL_BYTES, 0))
            tail = log.read(TAIL_BYTES)
    except OSError:
        return False
    above = tail[: max(tail.rfind(text.strip()[:80].encode("utf-8", "replace")), 0)]
    above, found, _ = above.rpartition(b"Traceback (most recent call last)")
    last = above.rstrip().rpartition(b"\n")[2] if found else b""
    before = above[: above.rfind(b"\n") + 1].rstrip().rpartition(b"\n")[2]
    return any(mark in line for mark in IGNORED for line in (last, before))
