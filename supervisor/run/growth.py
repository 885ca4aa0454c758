"""How the logs of an attempt grew: sizes and times, from which the time of each line follows.

A view sees a log grow while it is open. The keeper sees all of it, and leaves what it saw in ``growth.json`` of an attempt that
is over: at most `MOST_POINTS` points a log, so that lines of several ranks keep their order of arrival whoever looks later.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

import msgspec

from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import AttemptPaths, private

# Beyond this many points those that are close together are forgotten, the newest ones aside: a day of bursts stays a page of memory.
MOST_POINTS = 512
NEWEST_POINTS = 128
# Of 1,000 logs with all of their points.
MOST_BYTES = 16 << 20


class GrowthClock:
    """How large a file was, and when: maps an offset to a time and back, without gaps. One thread writes at a time, any may read.

    Args:
        start_t: when the file began, wall seconds.
        size: its size when it was first looked at.
        written_t: when it was last written then.

    When the first `estimated_bytes` were written is not known, only that all of them were there at `watched_t`.
    """

    def __init__(self, start_t: float, size: int, written_t: float) -> None:
        self.estimated_bytes = size
        self.watched_t = written_t
        # Size and time are one item, so that no reader sees the one without the other.
        self._points: list[tuple[int, float]] = [(0, min(start_t, written_t)), (max(size, 1), written_t)]

    @classmethod
    def recorded(cls, points: Sequence[tuple[int, float]]) -> GrowthClock:
        """From the points of one that saw the file grow from its beginning."""
        clock = cls(points[0][1], 0, points[0][1])
        clock._points = list(points)
        return clock

    @property
    def points(self) -> Sequence[tuple[int, float]]:
        """Sizes in bytes and when the file had them, both rising."""
        return self._points

    def use_recorded(self, offsets: Sequence[int], times: Sequence[float]) -> None:
        """How many bytes existed at those times, as a replay knows."""
        self._points = list(zip([0, *offsets], [times[0], *times], strict=True))
        self.estimated_bytes, self.watched_t = 0, times[0]

    def grew(self, size: int, before_t: float, t: float) -> None:
        """The file has `size` bytes at `t`, and had not grown yet at `before_t`."""
        last, last_t = self._points[-1]
        if size <= last:
            return
        before_t = max(before_t, last_t)
        quiet = [(last, before_t)] if before_t > last_t else []
        self._points += [*quiet, (size, max(t, before_t))]
        if len(self._points) > MOST_POINTS:
            self._points = _thinned(self._points)

    def time_of(self, offset: int) -> float:
        """When the file had come to hold all before `offset`: of a line's end, when it was written."""
        points = self._points
        right = min(max(bisect_left(points, offset, key=itemgetter(0)), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return _between(offset, x0, x1, y0, y1)

    def offset_of(self, t: float) -> int:
        """How large the file was at `t`."""
        points = self._points
        if t <= points[0][1]:
            return 0
        right = min(max(bisect_left(points, t, key=itemgetter(1)), 1), len(points) - 1)
        (y0, x0), (y1, x1) = points[right - 1], points[right]
        return int(_between(t, x0, x1, y0, y1))


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The newest points, and of the others some that are spread over all the time before."""
    newest = len(points) - NEWEST_POINTS
    apart = (points[newest][1] - points[0][1]) / NEWEST_POINTS
    kept = [points[0]]
    for point in points[1:newest]:
        if point[1] - kept[-1][1] >= apart:
            kept.append(point)
    return [*kept, *points[newest:]]


def _between(x: float, x0: float, x1: float, y0: float, y1: float) -> float:
    if x1 <= x0:
        return y1
    return y0 + (y1 - y0) * min(max((x - x0) / (x1 - x0), 0.0), 1.0)


def write_growth(attempt: AttemptPaths, logs: Mapping[str, GrowthClock]) -> None:
    """Leave what was seen of the logs, by their paths within the attempt's folder; of no use where the disk is full."""
    points = {name: [(size, round(t, 3)) for size, t in clock.points] for name, clock in logs.items()}
    if attempt.root.is_symlink():
        return  # of the job's making: `make_own`
    with contextlib.suppress(OSError), open(attempt.growth, "wb", opener=private) as file:
        file.write(msgspec.json.encode(points))


def read_growth(attempt: AttemptPaths) -> dict[str, GrowthClock]:
    """What the keeper saw of each log, by its path; nothing where it left nothing, or what cannot be."""
    logs = decoded_file(attempt.growth, dict[str, list[tuple[int, float]]], MOST_BYTES) or {}
    return {
        os.path.join(attempt.root, name): GrowthClock.recorded(points)
        for name, points in logs.items()
        if points and all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(points))
    }
