"""A level that creeps towards its limit: seen early, and not mistaken for a cache that fills up and stays."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median

POINTS = 60
THIRDS = 3


class Creep:
    """Thinned readings of one level. Bounded: at most `POINTS` readings, `spacing_s` apart.

    A level creeps if each third of the readings lies wholly above the one before: a caching allocator's memory goes
    up in steps and stays, a leak does not stay.
    """

    def __init__(self, *, spacing_s: float = 20.0) -> None:
        self._spacing_s = spacing_s
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)

    def add(self, t: float, value: float) -> None:
        """One reading at `t` seconds."""
        if not self._points or t - self._points[-1][0] >= self._spacing_s:
            self._points.append((t, value))

    def full_in_s(self, limit: float) -> float | None:
        """Seconds until the level reaches `limit` at its present slope; None if it does not creep, or too little is known."""
        if len(self._points) < POINTS // 2:
            return None
        points = list(self._points)
        size = len(points) // THIRDS
        thirds = [points[at * size : (at + 1) * size] for at in range(THIRDS)]
        rises = all(
            min(v for _, v in later) > max(v for _, v in earlier) for earlier, later in pairwise(thirds)
        )
        if not rises:
            return None
        first, last = thirds[0], thirds[-1]
        span = median(t for t, _ in last) - median(t for t, _ in first)
        slope = (median(v for _, v in last) - median(v for _, v in first)) / span if span > 0 else 0.0
        return max(0.0, (limit - points[-1][1]) / slope) if slope > 0 else None


class Typical:
    """Median and spread of the last values: what a spike is measured against."""

    def __init__(self, size: int = 64) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        """One value."""
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def median(self) -> float:
        """The middle value."""
        return median(self._values)

    @property
    def spread(self) -> float:
        """1.4826 times the median distance from the median: a standard deviation that no outlier moves."""
        middle = self.median
        return 1.4826 * median(abs(value - middle) for value in self._values)
