"""Finds the rank that slows the others down, even though all ranks look equally slow.

With DDP, every rank's step takes as long as the slowest rank's, because the others wait for it in the gradient
exchange. Printed step times therefore cannot distinguish the ranks. What counts is the time a rank spends before the
exchange: its wait for data, and the time between its steps according to telemetry. For a script without telemetry,
the instrumentation measures this time in each rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from supervisor.policy.health.early_signs import Advice

WINDOW, LEAST = 30, 10
"""How many of a rank's latest steps are compared, and how many rows each rank must have.

Only `LEAST` measured rows, which come once a second, are compared, so a rank that slows down is found in about 6 s.
"""
SHARE = 0.2
"""A rank is slow if it alone accounts for this fraction of every step."""
NAMED_SHARE = 0.15
"""The fraction for a rank already reported as slow. It is lower so that the report does not come and go."""
MET = 0.8
"""Ranks that wait for each other have steps of about the same length."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The rank that the others are waiting for. It costs them `lost_s` of every step, and a step takes `step_s`."""

    rank: int
    lost_s: float
    step_s: float
    advice: Advice


class Stragglers:
    """Per-rank times of one attempt: the length of a step, the rank's own part of it, and its wait for data."""

    def __init__(self) -> None:
        self._rows: dict[int, deque[tuple[float, float, float]]] = {}
        self._last: dict[int, tuple[float, float | None]] = {}
        self._named: int | None = None

    def step(self, rank: int, t: float, values: Mapping[str, float]) -> None:
        """Add a step that a rank's telemetry reported at `t` (wall seconds)."""
        number = values.get("step")
        last_t, last_step = self._last.get(rank, (t, None))
        if number is not None and last_step is not None and number - last_step == 1 and t > last_t:
            # The step time in telemetry includes the waits for other ranks. The rest of the gap is the rank's own.
            step_s, data_s = t - last_t, values.get("data_wait_s") or 0.0
            outside_s = max(step_s - values.get("step_time_s", step_s), 0.0)
            self._add(rank, step_s, outside_s + data_s, data_s)
        self._last[rank] = t, number

    def pause(self) -> None:
        """Skip the next gap, because something else (an evaluation, a checkpoint) came between two steps."""
        self._last.clear()

    def measured(self, rank: int, values: Mapping[str, float | None]) -> None:
        """Add what the instrumentation measured for a rank's steps: how long they took and the rank's own share of that."""
        step_s, data_s = values.get("step_time_s"), values.get("data_wait_s")
        own_s = values.get("compute_s", data_s)
        if step_s is not None and own_s is not None:
            self._add(rank, step_s, own_s, data_s or 0.0, most=LEAST)

    def _add(self, rank: int, step_s: float, own_s: float, data_s: float, most: int = WINDOW) -> None:
        self._rows.setdefault(rank, deque(maxlen=most)).append((step_s, own_s, data_s))

    def find(self) -> SlowRank | None:
        """Return the single rank that the others are waiting for and the likely reason, or None."""
        found = self._slowest()
        self._named = found.rank if found is not None else None
        return found

    def _slowest(self) -> SlowRank | None:
        """Return the rank that takes longest for its own part of a step, if the others' steps last until that part is done."""
        if len(self._rows) < 2 or any(len(rows) < LEAST for rows in self._rows.values()):
            return None
        middles = {
            rank: [median(column) for column in zip(*rows, strict=True)] for rank, rows in self._rows.items()
        }
        slow = max(middles, key=lambda rank: middles[rank][1])
        _, own_s, data_s = middles[slow]
        lost_s = own_s - median(middles[rank][1] for rank in middles if rank != slow)
        step_s = median(step_s for step_s, _, _ in middles.values())
        share = NAMED_SHARE if slow == self._named else SHARE
        shortest_s = min(step_s for step_s, _, _ in middles.values())
        if lost_s <= 0 or lost_s < share * step_s or shortest_s < MET * own_s:
            return None
        where = "fetching data" if data_s > own_s / 2 else "on its own work, as measured in the ranks"
        text = f"rank {slow} holds the others up by {lost_s:.2g} s in every step of {step_s:.2g} s: it spends them {where}"
        return SlowRank(slow, lost_s, step_s, Advice("straggler", text, slow))
