"""Where the time of the newest attempt's steps goes, read from its ranks' records as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from supervisor.run.paths import RunPaths
from supervisor.run.regular import open_regular
from supervisor.run.state import RunState
from supervisor.sources.measured_files import measured_ranks
from supervisor.sources.telemetry import measured_record

if TYPE_CHECKING:
    from supervisor.policy.health.slow_steps import LostTime, RankTimes

LOOK_S = 10.0
FIRST_BYTES = 1 << 20
"""Only this much is read of the end of a file that is long already: about 50 minutes."""
FIRST_LOOK_S = 1.0
"""The first look waits until the first frame has been drawn."""
MOST_ROWS = 900


class StepTimes(msgspec.Struct, frozen=True):
    """Measured steps of the newest attempt: their number, their mean in seconds, the ranks, and what costs time."""

    steps: int = 0
    each_s: float = 0.0
    ranks: int = 0
    found: tuple[LostTime, ...] = ()


class StepTimesReader:
    """Reads the records of all ranks of a run that this machine can see. Not thread-safe."""

    def __init__(self, run: RunPaths, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._run, self._monotonic = run, monotonic
        self._due = monotonic() + FIRST_LOOK_S
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt, self._last = attempt, StepTimes()
        self._ranks: dict[int, RankTimes] = {}
        self._read_to: dict[Path, int] = {}

    def refresh(self, state: RunState) -> StepTimes:
        """Return the times. They are derived anew every `LOOK_S` seconds, and the same object until then."""
        now = self._monotonic()
        if now < self._due or state.attempt is None:
            return self._last
        self._due, number = now + LOOK_S, state.attempt.number
        if number != self._attempt:
            self._begin(number)
        from supervisor.policy.health.slow_steps import RankTimes, why_slow  # not wanted at a start

        before = dict(self._read_to)
        for node in self._run.nodes():
            folder = self._run.node(node).attempt(number).telemetry
            for rank in measured_ranks(folder):
                times = self._ranks.setdefault(rank, RankTimes())
                self._read(folder / f"measured{rank}.jsonl", times)
        if before == self._read_to:
            return self._last
        first = next((times for _, times in sorted(self._ranks.items())), RankTimes())
        each_s = first.total("step_time_s") / max(first.steps, 1)
        self._last = StepTimes(first.steps, each_s, len(self._ranks), tuple(why_slow(self._ranks)))
        return self._last

    def _read(self, path: Path, times: RankTimes) -> None:
        """Add the records that were appended since the last look. A smaller file is a new one."""
        try:
            with open_regular(path) as file:
                size = file.seek(0, 2)
                start = self._read_to.get(path, max(0, size - FIRST_BYTES))
                file.seek(0 if start > size else start)
                *lines, rest = file.read().split(b"\n")
                self._read_to[path] = file.tell() - len(rest)
        except OSError:
            return
        for line in lines:
            if (record := measured_record(line)) is not None:
                times.add(record)
        times.forget(MOST_ROWS)
