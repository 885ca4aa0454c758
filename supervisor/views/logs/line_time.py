"""When the lines of a log were written: by their own stamps, else by when the file grew.

Most training logs carry no time. What is known then is when the file began, and how large it was whenever it
was looked at; between two such points its lines are taken to be evenly spread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from supervisor.text.stamps import is_rising, local_shift, shift_of

# Beyond this many points every second one is forgotten: a day of bursts stays a page of memory.
MOST_POINTS = 512
# Stamps are those of an attempt if they lie within it, give or take clocks that differ.
WITHIN_S = 2.0


def anchor_shift(anchors: Sequence[float], start_t: float, written_t: float) -> float | None:
    """What makes a log's few stamps wall time; None: there are none, or none that lie within its attempt.

    Args:
        anchors: what `anchor_of` gave, in the order of the lines.
        start_t: when the attempt began, wall seconds; 0: unknown.
        written_t: when the log was last written.
    """
    if not anchors or (len(anchors) > 1 and not is_rising(anchors)):
        return None
    for shift in (local_shift(written_t), shift_of(anchors[-1], written_t)):
        if start_t - WITHIN_S <= anchors[0] + shift and anchors[-1] + shift <= written_t + WITHIN_S:
            return shift
    return None


class GrowthClock:
    """How large a file was, and when: turns an offset into a time and back, both without a gap.

    Args:
        start_t: when the file began, wall seconds.
        size: its size when it was first looked at.
        written_t: when it was last written then.
    """

    def __init__(self, start_t: float, size: int, written_t: float) -> None:
        self._offsets = [0, max(size, 1)]
        self._times = [min(start_t, written_t), written_t]

    def grew(self, size: int, before_t: float, t: float) -> None:
        """The file has `size` bytes at `t`, and had not grown yet at `before_t`."""
        last = self._offsets[-1]
        if size <= last:
            return
        before_t = max(before_t, self._times[-1])
        if before_t > self._times[-1]:
            self._offsets.append(last)
            self._times.append(before_t)
        self._offsets.append(size)
        self._times.append(max(t, before_t))
        if len(self._offsets) > MOST_POINTS:
            self._offsets[1:-1] = self._offsets[1:-1:2]
            self._times[1:-1] = self._times[1:-1:2]

    def time_of(self, offset: int) -> float:
        """When the byte at `offset` was written."""
        right = min(max(bisect_right(self._offsets, offset), 1), len(self._offsets) - 1)
        return _between(offset, self._offsets, self._times, right)

    def offset_of(self, t: float) -> int:
        """How large the file was at `t`."""
        if t <= self._times[0]:
            return 0
        right = min(max(bisect_left(self._times, t), 1), len(self._times) - 1)
        return int(_between(t, self._times, self._offsets, right))


def _between(x: float, xs: Sequence[float], ys: Sequence[float], right: int) -> float:
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    if x1 <= x0:
        return y1
    return y0 + (y1 - y0) * min(max((x - x0) / (x1 - x0), 0.0), 1.0)
