"""A view's memory of a series. Older points are merged to limit memory (pure)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias


class Point(NamedTuple):
    """One sample, or several merged. `t` (wall seconds), `step`, `epoch`, `number` and `line_t` come from the newest.

    `number` is its index among the readings. `late` means that the value was read after it was written. Then `t` is the time of
    reading, and `line_t` the time in the line, if any.
    """

    t: float
    step: float | None
    low: float
    mean: float
    high: float
    weight: int
    attempt: int
    epoch: float | None = None
    number: int = 0
    late: bool = False
    line_t: float | None = None

    @property
    def time(self) -> float | None:
        """The wall time of writing in seconds, or None if unknown."""
        return self.line_t if self.late else self.t


Track: TypeAlias = tuple[Point, ...]


def single(t: float, step: float | None, value: float, attempt: int) -> Point:
    """Return a point of one sample."""
    return Point(t, step, value, value, value, 1, attempt)


def merge(a: Point, b: Point) -> Point:
    """Merge two adjacent points. Keep minimum and maximum, so that a spike is never lost."""
    weight = a.weight + b.weight
    mean = (a.mean * a.weight + b.mean * b.weight) / weight
    return b._replace(low=min(a.low, b.low), mean=mean, high=max(a.high, b.high), weight=weight)


def lives_on(point: Point, cuts: Mapping[int, float]) -> bool:
    """Check whether no later attempt repeated the step of a point. A point that has no step is not repeated."""
    return point.step is None or point.step < cuts.get(point.attempt, math.inf)


class Whole:
    """A whole series in about `cap` points of similar sample counts. When full, adjacent points of one attempt are merged.

    The first point stays unmerged, because the axis begins there. So does the newest quarter, which contains
    the point shown as a number and the points that users zoom to.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._points: list[Point] = []
        self._view: Track | None = ()
        self._most = 1  # greatest number of samples in a merged point

    def add(self, point: Point) -> None:
        """Append a point. Non-finite values are skipped."""
        if not (math.isfinite(point.low) and math.isfinite(point.high)):
            return
        self._points.append(point)
        self._view = None
        if len(self._points) > self._cap:
            self._merge()

    def view(self) -> Track:
        """Return the points, oldest first. Until a point is added, this is the same object."""
        if self._view is None:
            self._view = tuple(self._points)
        return self._view

    def _merge(self) -> None:
        """Merge light points, then twice as heavy ones, until an eighth is free. Merging all pairs would thin early points too much."""
        newest = max(1, self._cap // 4)
        first, older, newer = self._points[:1], self._points[1:-newest], self._points[-newest:]
        samples = sum(point.weight for point in older)
        older = _merged(older, self._most)
        while len(older) > self._cap * 5 // 8 and self._most < samples:
            self._most *= 2
            older = _merged(older, self._most)
        self._points = [*first, *older, *newer]


def _merged(points: Iterable[Point], most: int) -> list[Point]:
    """Merge adjacent points of the same attempt into points of at most `most` samples."""
    found: list[Point] = []
    for point in points:
        last = found[-1] if found else None
        if last is not None and last.attempt == point.attempt and last.weight + point.weight <= most:
            found[-1] = merge(last, point)
        else:
            found.append(point)
    return found


class Recent:
    """The newest `cap` points of a series."""

    def __init__(self, cap: int) -> None:
        self._points: deque[Point] = deque(maxlen=cap)

    def add(self, point: Point) -> None:
        """Append a point. Non-finite values are skipped."""
        if math.isfinite(point.low) and math.isfinite(point.high):
            self._points.append(point)

    def view(self) -> Track:
        """Return the points, oldest first."""
        return tuple(self._points)


# A moving mean over this share of the visible range follows the curve and hides the noise.
SMOOTH_SHARE = 1 / 30


def smooth(points: Sequence[Point], share: float = SMOOTH_SHARE) -> tuple[float, ...]:
    """Return a moving mean of each attempt's means, exponential on both sides, over about `share` of the range.

    A trailing mean lags behind a falling loss. This mean is centered on its values. At the newest point, it
    covers only the past. Its ends are corrected for missing values (bias correction in Kingma and Ba 2015,
    section 3), so that the first values are not pulled to zero.
    """
    span = max(3.0, len(points) * share)
    keep = 1 - 2 / (span + 1)
    smoothed: list[float] = []
    for _, mine in groupby(points, key=attrgetter("attempt")):
        values = [point.mean for point in mine]
        past = _sums(values, keep)
        future = _sums(values[::-1], keep)
        weights = _sums([1.0] * len(values), keep)
        # The sums of both sides contain each value.
        for value, before, after, left, right in zip(
            values, past, reversed(future), weights, reversed(weights), strict=True
        ):
            smoothed.append((before + after - value) / (left + right - 1.0))
    return tuple(smoothed)


def _sums(values: Sequence[float], keep: float) -> list[float]:
    """Return, for each value, the sum of all values up to it, weighted by `keep` per position."""
    return list(accumulate(values, lambda total, value: keep * total + value))


def median(values: Iterable[float]) -> float | None:
    """Return the median (the lower of two, so that of two ranks the faster is the norm), or None if empty."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None
