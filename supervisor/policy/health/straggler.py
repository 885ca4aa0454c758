"""Finds the rank that slows the others down, although all ranks look equally slow.

With DDP every rank's step takes as long as the slowest one's, because the others wait for it in the gradient exchange. Printed step
times therefore do not tell the ranks apart. What counts is the time that a rank spends before the exchange: its wait for data, and the
time between its steps according to telemetry. For a script without telemetry, the instrumentation measures this time in each rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from supervisor.policy.health.early_signs import Advice

WINDOW = 30
SHARE = 0.2
"""A rank is slow if it alone costs this share of every step."""
NAMED_SHARE = 0.15
"""The share for a rank that is already reported as slow, so that the report does not come and go."""
MEASURED = 10
"""Measurements of each rank in one comparison. There is one a second."""
MET = 0.8
"""Ranks that wait for each other have steps of about the same length."""


@dataclass(slots=True)
class _Rank:
    """The last steps of one rank. `rows`: seconds per step, the part outside of the timed step, the wait for data."""

    last_t: float | None = None
    last_step: float | None = None
    rows: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The rank that the others wait for: by `lost_s` of every step of `gap_s`."""

    rank: int
    lost_s: float
    gap_s: float
    advice: Advice


class Stragglers:
    """Per-rank step times of one attempt."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._named: int | None = None
        self._measured: dict[int, deque[tuple[float, float]]] = {}

    def step(self, rank: int, t: float, values: Mapping[str, float], *, from_telemetry: bool) -> None:
        """Add a step that a rank reported at `t` (wall seconds). A log may show only every tenth step."""
        number = values.get("step")
        known = self._ranks.setdefault(rank, _Rank())
        steps = number - known.last_step if number is not None and known.last_step is not None else 0
        follows = steps == 1 if from_telemetry else steps >= 1
        if follows and known.last_t is not None and t > known.last_t:
            gap_s = (t - known.last_t) / steps
            # Telemetry's step time includes the waits. A log may print the time of any part of the step.
            outside_s = gap_s - values.get("step_time_s", gap_s) if from_telemetry else 0.0
            known.rows.append((gap_s, max(outside_s, 0.0), values.get("data_wait_s") or 0.0))
        known.last_t, known.last_step = t, number

    def pause(self) -> None:
        """Ignore the next gap, because something else came between two steps (an evaluation, a checkpoint)."""
        for known in self._ranks.values():
            known.last_step = None

    def measured(self, rank: int, values: Mapping[str, float | None]) -> None:
        """Add what the instrumentation measured of a rank's steps: their time, and the rank's own part of it."""
        step_s, own_s = values.get("step_time_s"), values.get("compute_s", values.get("data_wait_s"))
        if step_s is not None and own_s is not None:
            self._measured.setdefault(rank, deque(maxlen=MEASURED)).append((step_s, own_s))

    def find(self) -> SlowRank | None:
        """Return the one rank that the others wait for, with the likely reason, or None."""
        found = self._by_steps() or self._by_measurements()
        self._named = found.rank if found is not None else None
        return found

    def _share(self, rank: int) -> float:
        return NAMED_SHARE if rank == self._named else SHARE

    def _by_steps(self) -> SlowRank | None:
        if not self._ranks or any(len(known.rows) < WINDOW for known in self._ranks.values()):
            return None
        middles = {
            rank: [median(column) for column in zip(*known.rows, strict=True)]
            for rank, known in self._ranks.items()
        }
        gap_s = median(gap_s for gap_s, _, _ in middles.values())
        slow = max(middles, key=lambda rank: sum(middles[rank][1:]))
        others = [sum(own[1:]) for rank, own in middles.items() if rank != slow]
        _, outside_s, data_s = middles[slow]
        lost_s = outside_s + data_s - median(others) if others else 0.0
        if lost_s <= 0 or lost_s < self._share(slow) * gap_s:
            return None
        where = "fetching data" if data_s >= outside_s else "outside of the step"
        return _slow_rank(slow, lost_s, gap_s, where)

    def _by_measurements(self) -> SlowRank | None:
        """Return the rank whose own part of a step is longer, if the others' steps last until it is done."""
        if len(self._measured) < 2 or any(len(rows) < MEASURED for rows in self._measured.values()):
            return None
        steps_s = {rank: median(step_s for step_s, _ in rows) for rank, rows in self._measured.items()}
        owns_s = {rank: median(own_s for _, own_s in rows) for rank, rows in self._measured.items()}
        slow = max(owns_s, key=lambda rank: owns_s[rank])
        lost_s = owns_s[slow] - median(own_s for rank, own_s in owns_s.items() if rank != slow)
        step_s = median(steps_s.values())
        if lost_s <= 0 or lost_s < self._share(slow) * step_s or min(steps_s.values()) < MET * owns_s[slow]:
            return None
        return _slow_rank(slow, lost_s, step_s, "on its own work, as measured in the ranks")


def _slow_rank(rank: int, lost_s: float, step_s: float, where: str) -> SlowRank:
    text = f"rank {rank} holds the others up by {lost_s:.2g} s in every step of {step_s:.2g} s: it spends them {where}"
    return SlowRank(rank, lost_s, step_s, Advice("straggler", text, rank))
