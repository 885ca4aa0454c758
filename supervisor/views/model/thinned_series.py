"""A series as held in a view's memory, where older points are merged to save space. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias


class Point(NamedTuple):
    """A sample, or several merged into one.

    `t` (wall-clock seconds), `step`, `epoch`, `number` (index among the readings) and `line_t` come from the latest sample.
    If `late`, it was read well after it was written: `t` is when it was read, and `line_t` is the time in the line, if any.
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
        """When the sample was written, as wall time in seconds, or None if unknown."""
        return self.line_t if self.late else self.t


Track: TypeAlias = tuple[Point, ...]


def single(t: float, step: float | None, value: float, attempt: int) -> Point:
    """Return a point for a single sample."""
    return Point(t, step, value, value, value, 1, attempt)


def merge(a: Point, b: Point) -> Point:
    """Merge two adjacent points, preserving the minimum and maximum so that no spike is lost."""
    weight = a.weight + b.weight
    mean = (a.mean * a.weight + b.mean * b.weight) / weight
    return b._replace(low=min(a.low, b.low), mean=mean, high=max(a.high, b.high), weight=weight)


def lives_on(point: Point, cuts: Mapping[int, float]) -> bool:
    """Check that no later attempt repeated a point's step. A point without a step is never repeated."""
    return point.step is None or point.step < cuts.get(point.attempt, math.inf)


class Whole:
    """A whole series in about `cap` points of similar weight. When full, merges neighbors from the same attempt.

    The first point is never merged, because the axis starts there. Neither is the latest quarter, which
    includes the point shown as a number and the range that users zoom in on.
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
        """Return the points, oldest first. The same object is returned until a point is added."""
        if self._view is None:
            self._view = tuple(self._points)
        return self._view

    def _merge(self) -> None:
        """Merge light points, then points twice as heavy, etc., until 1/8 is free. Merging every pair would overthin early points."""
        newest = max(1, self._cap // 4)
        first, older, newer = self._points[:1], self._points[1:-newest], self._points[-newest:]
        samples = sum(point.weight for point in older)
        older = _merged(older, self._most)
        while len(older) > self._cap * 5 // 8 and self._most < samples:
            self._most *= 2
            older = _merged(older, self._most)
        self._points = [*first, *older, *newer]


def _merged(points: Iterable[Point], most: int) -> list[Point]:
    """Merge adjacent points from the same attempt into points of at most `most` samples."""
    found: list[Point] = []
    for point in points:
        last = found[-1] if found else None
        if last is not None and last.attempt == point.attempt and last.weight + point.weight <= most:
            found[-1] = merge(last, point)
        else:
            found.append(point)
    return found


class Recent:
    """The latest `cap` points of a series."""

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


def smooth(points: Sequence[Point]) -> tuple[float, ...]:
    """Smooth each attempt with a moving mean, exponential on both sides, over about `SMOOTH_SHARE` of the range.

    A trailing mean lags behind a falling loss; this one is centered. At the latest point, it covers only the
    past. Both ends are corrected for missing values (bias correction in Kingma and Ba 2015, section 3), so
    the first values are not pulled toward zero.
    """
    span = max(3.0, len(points) * SMOOTH_SHARE)
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
    """Return running sums in which earlier values are discounted by `keep` per position."""
    return list(accumulate(values, lambda total, value: keep * total + value))


def median(values: Iterable[float]) -> float | None:
    """Return the median, or None if empty. The lower of two middle values is used, so the faster of two ranks is the norm."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None
