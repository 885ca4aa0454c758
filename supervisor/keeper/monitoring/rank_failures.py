"""That a rank fails, as soon as its process shows it: long before its launcher has ended, and the verdict is there.

An error in a log is no failure: scripts print exceptions that they have dealt with. It is one once the rank's interpreter shuts
down after it (see `processes.catches`: 8 ms after an uncaught exception's last line, where torch then takes 0.5 s and more to be
gone), or once its process is gone. The process says that a rank fails, its last error line says why.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import EvidenceHit, Observation, StepSeen
from supervisor.run import events as ev
from supervisor.run.regular import open_regular
from supervisor.run.state import AttemptState, RankState
from supervisor.sources.processes import ProcessId, catches, is_alive

FRESH_S = 15.0
"""An error so old is no reason for an exit; atexit functions, as of trackers that upload, run before the interpreter shuts down."""
STEP_AFTER_S = 0.5
"""A step that is logged so much later than an error shows that the script dealt with it."""
TAIL_BYTES = 1 << 16
IGNORED = (b"Exception ignored in", b"Exception in thread", b"--- Logging error ---")
FAST_S = 1.0
FAST_HITS = 50
"""After an error the process is looked at every 20 ms for a moment; a job that prints errors all the time does not have that."""
MOST_CHECKS = 100
"""So often it is looked, a look of the loop each, whether a rank has its handler yet: an interpreter sets it within some 20 ms of
its start, and one that was started with SIGINT ignored never does."""


class RankFailures:
    """Of one attempt after the other, its first rank that fails. Used by the keeper's one thread."""

    def __init__(self, clock: Clock, log_of: Callable[[str], Path | None] = lambda _name: None) -> None:
        """`log_of`: where the log of this name lies."""
        self._clock, self._log_of = clock, log_of
        self.begin()

    def begin(self) -> None:
        """Another attempt."""
        self._first: dict[int | None, EvidenceHit] = {}
        self._last: dict[int | None, EvidenceHit] = {}
        self._hits = 0
        self._fast_until = float("-inf")
        self._caught: set[int] = set()
        self._ignored: set[EvidenceHit] = set()
        self._checks: Counter[int] = Counter()

    @property
    def is_urgent(self) -> bool:
        """Whether a rank may be about to fail: it has just written an error."""
        return self._clock.mono() < self._fast_until

    def observe(self, seen: Observation) -> None:
        """What bears on it: an error that a rank wrote, or a step after it."""
        if isinstance(seen, EvidenceHit):
            known = self._first.get(seen.rank)
            if known is None or seen.t - known.t > FRESH_S:
                self._first[seen.rank] = seen
            self._last[seen.rank] = seen
            self._hits += 1
            if self._hits <= FAST_HITS:
                self._fast_until = self._clock.mono() + FAST_S
        elif isinstance(seen, StepSeen) and self._last:
            for name in [seen.rank] if seen.rank is not None else list(self._last):
                hit = self._last.get(name)
                if hit is not None and seen.t - hit.t > STEP_AFTER_S:
                    del self._last[name], self._first[name]

    def look(
        self, view: AttemptState, ranks: Mapping[int, ProcessId], *, done: bool = False
    ) -> ev.RankFailing | None:
        """The first rank that fails, told once; None: none, or it is known.

        `ranks`: processes by local rank. `done`: the job has made its last step, after which an interpreter shuts down anyway.
        """
        if view.failing is not None:
            return None
        now = self._clock.wall()
        found: list[tuple[float, ev.RankFailing]] = []
        for local_rank, process in ranks.items():
            known = view.ranks.get(local_rank, RankState(local_rank=local_rank))
            hit = self._last.get(known.rank if known.rank is not None else local_rank, self._last.get(None))
            hit = hit if hit is not None and now - hit.t <= FRESH_S else None
            if known.exited:
                failed = known.exit_code != 0 if known.exit_code is not None else self._explains(hit)
                sign = ev.FailureSign.GONE if failed else None
            elif hit is not None or (
                local_rank not in self._caught and self._checks[local_rank] < MOST_CHECKS
            ):
                ends = self._shuts_down(local_rank, process) and self._explains(hit) and not done
                sign = ev.FailureSign.EXITING if ends else None
            else:
                continue
            if sign is not None:
                first_t = self._first[hit.rank].t if hit is not None else now
                found.append((first_t, _event(now, view.number, known, sign, hit)))
        return min(found, key=lambda one: one[0])[1] if found else None

    def _explains(self, hit: EvidenceHit | None) -> bool:
        """Whether an error line may be why a rank ends: not that of a finalizer or a thread, as Python says in the line before."""
        if hit is None or hit in self._ignored:
            return False
        path = self._log_of(hit.path)
        if path is not None and _was_ignored(path, hit.text):
            self._ignored.add(hit)
            return False
        return True

    def _shuts_down(self, local_rank: int, process: ProcessId) -> bool:
        """Whether the interpreter of a rank has given its handler of SIGINT back, which it had."""
        self._checks[local_rank] += 1
        caught = catches(process.pid, signal.SIGINT)
        if caught:
            self._caught.add(local_rank)
        return caught is False and local_rank in self._caught and is_alive(process)


def _event(
    t: float, attempt: int, known: RankState, sign: ev.FailureSign, hit: EvidenceHit | None
) -> ev.RankFailing:
    told = ev.RankFailing(
        t=t,
        attempt=attempt,
        local_rank=known.local_rank,
        sign=sign,
        rank=known.rank,
        exit_code=known.exit_code,
    )
    if hit is None:
        return told
    text = hit.text.strip()[:400]
    return replace(told, failure=hit.failure, text=text, path=hit.path, line=hit.line)


def _was_ignored(path: Path, text: str) -> bool:
    """Whether Python printed a traceback of an error that ends nothing: ``Exception ignored in: …`` stands above it."""
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
