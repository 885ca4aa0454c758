"""The time that a line of a log says of itself (pure)."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Sequence

# A stamp stands at a line's head; what follows may quote any date.
HEAD_CHARS = 80

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
