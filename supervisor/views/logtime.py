"""When the lines of a log were written: by their own stamps, else by when the file grew.

Most training logs carry no time. What is known then is when the file began, and how large it was whenever it
was looked at; between two such points its lines are taken to be evenly spread.
"""

from __future__ import annotations

import calendar
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

# A stamp stands at a line's head; what follows may quote any date.
HEAD_CHARS = 80
# Beyond this many points every second one is forgotten: a day of bursts stays a page of memory.
MOST_POINTS = 512
# A file's last stamp and its time of change agree to within this, once the zone is known.
AGREE_S = 120.0
ZONE_S = 900.0
MOST_ZONE_S = 14.5 * 3600

_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(r"\b[IWEFD](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_CLOCK = re.compile(r"(?:^|[\[( ])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?=[\]),: |]|$)")


def stamp_of(text: str, day_t: float) -> float | None:
    """The time that a line's head says, in seconds; a zone that it does not name is taken as UTC.

    Args:
        text: the line.
        day_t: a time (UTC seconds) near the line's own, for stamps without a year or a day.
    """
    head = text[:HEAD_CHARS]
    if ":" not in head:
        return None
    try:
        if match := _ISO.search(head):
            *date, fraction, zone = match.groups()
            t = _seconds([int(part) for part in date], fraction)
            return t - _zone_s(zone) if zone else t
        if match := _GLOG.search(head):
            *date, fraction = match.groups()
            t = _seconds([time.gmtime(day_t).tm_year, *(int(part) for part in date)], fraction)
            # Written in December, read in January.
            return t if t < day_t + 30 * 86400 else t - 365 * 86400
        if match := _CLOCK.search(head):
            hour, minute, second, fraction = match.groups()
            t = _seconds([*time.gmtime(day_t)[:3], int(hour), int(minute), int(second)], fraction)
            return t + 86400 * round((day_t - t) / 86400)
    except (ValueError, OverflowError):  # 2026-99-99
        return None
    return None


def _seconds(parts: Sequence[int], fraction: str | None) -> float:
    if parts[3] > 23 or parts[4] > 59 or parts[5] > 60 or not 1 <= parts[1] <= 12 or not 1 <= parts[2] <= 31:
        raise ValueError("no time")
    return calendar.timegm((*parts, 0, 0, 0)) + (float(f"0.{fraction}") if fraction else 0.0)


def _zone_s(zone: str) -> float:
    if zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:4]) * 60)


def shift_of(last_stamp_t: float, written_t: float) -> float:
    """What makes a file's stamps wall time: whole quarters of an hour, if they then agree with its last change."""
    shift = round((written_t - last_stamp_t) / ZONE_S) * ZONE_S
    agrees = abs(shift) <= MOST_ZONE_S and abs(written_t - last_stamp_t - shift) <= AGREE_S
    return shift if agrees else -time.localtime(written_t).tm_gmtoff * 1.0


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


def is_rising(values: Sequence[float]) -> bool:
    """Whether most neighbours do not go back: stamps of one writer do not."""
    return sum(b >= a for a, b in pairwise(values)) >= 0.9 * max(len(values) - 1, 1)
