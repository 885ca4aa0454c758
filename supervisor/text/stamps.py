"""The time stamp of a log line (pure except for the local time zone)."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

# A stamp stands at a line's head; what follows may quote any date.
HEAD_CHARS = 80
# A file's last stamp and its time of change agree to within this, once the zone is known.
AGREE_S = 120.0
ZONE_S = 900.0
# The offsets of the world's zones, in quarters of an hour: whole hours, and the few that are none (IANA, 2025b).
ZONES = frozenset((*range(-48, 57, 4), *(-38, -14, -10, 14, 18, 22, 23, 26, 35, 38, 42, 51, 55)))

# What can be nothing but a line's own stamp: a whole date at its very head, as glog, c10d and logging write it.
_ANCHOR = re.compile(
    r"[\[(]?(?:[IWEF](?:\d{4})?\d{4} \d\d:\d\d:\d\d[. ]|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d"
    r"|\d\d/\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? )"
)

_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(r"\b[IWEFD](\d{4})?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
# Month and day, as mmengine writes them: elsewhere than at the head two numbers are a counter.
_MONTH_DAY = re.compile(
    r"(?:\[[^\]]*\]:? ?|\d+: ?)?[\[(]?(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?=[\]), ]|$)"
)
# The time that is left is none of the day.
_LEFT = re.compile(r"\b(?:eta|remaining|elapsed)\b\W{0,3}$", re.IGNORECASE)
_CLOCK = re.compile(r"(?:^|[\[( ])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?=[\]),: |]|$)")


def stamp_of(text: str, day_t: float) -> float | None:
    """The time stamp at a line's head, in seconds; without a zone it is taken as UTC.

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
        if match := _GLOG.search(head) or _month_day(head):
            year, *date, fraction = match.groups() if match.re is _GLOG else (None, *match.groups())
            known = int(year) if year else datetime.fromtimestamp(day_t, UTC).year
            t = _seconds([known, *(int(part) for part in date)], fraction)
            # Written in December, read in January.
            return t if year or t < day_t + 30 * 86400 else t - 365 * 86400
        if (match := _CLOCK.search(head)) and not _LEFT.search(head, 0, match.start(1)):
            hour, minute, second, fraction = match.groups()
            day = datetime.fromtimestamp(day_t, UTC)
            t = _seconds([day.year, day.month, day.day, int(hour), int(minute), int(second)], fraction)
            return t + 86400 * round((day_t - t) / 86400)
    except (ValueError, OverflowError):  # 2026-99-99
        return None
    return None


def anchor_of(text: str, day_t: float) -> float | None:
    """What `stamp_of` gives, of lines that begin with a whole date: believed where few lines carry one."""
    return stamp_of(text, day_t) if _ANCHOR.match(text) else None


def is_rising(values: Sequence[float]) -> bool:
    """Whether at least nine in ten steps do not go back: the stamps of one writer do not."""
    return sum(b >= a for a, b in pairwise(values)) >= 0.9 * max(len(values) - 1, 1)


def shift_of(last_stamp_t: float, written_t: float) -> float:
    """What makes a file's stamps wall time: a zone with which they agree with its last change, else the local one."""
    quarters = round((written_t - last_stamp_t) / ZONE_S)
    shift = quarters * ZONE_S
    agrees = -quarters in ZONES and abs(written_t - last_stamp_t - shift) <= AGREE_S
    return shift if agrees else local_shift(written_t)


def local_shift(t: float) -> float:
    """What makes stamps of this machine's own zone wall time."""
    offset = datetime.fromtimestamp(t, UTC).astimezone().utcoffset()
    return -offset.total_seconds() if offset is not None else 0.0


def span_of(head: Sequence[str], tail: Sequence[str], written_t: float) -> tuple[float, float] | None:
    """When a log began and ended by its own clock, wall seconds; None: its lines carry none.

    Args:
        head: its first lines.
        tail: its last lines.
        written_t: when it was last written.
    """
    # Stamps that begin in the second half say nothing of the beginning: they are of a save at the end, or the like.
    if all(
        anchor_of(text, written_t) is None and stamp_of(text, written_t) is None
        for text in head[: len(head) // 2 + 1]
    ):
        return None
    # A copy was written later than its lines: what they name of a year is theirs.
    day_t = max((t for text in (*head, *tail) if (t := _whole_date(text)) is not None), default=written_t)
    first, last = _clock_of(head, day_t), _clock_of(tail, day_t)
    if not first or not last or first[0] > last[-1]:
        return None
    shift = shift_of(last[-1], written_t)
    return first[0] + shift, last[-1] + shift


def _month_day(head: str) -> re.Match[str] | None:
    """A stamp of month and day at the head; a first number above 12 is no month."""
    match = _MONTH_DAY.match(head)
    return match if match is not None and 1 <= int(match[1]) <= 12 else None


def _whole_date(text: str) -> float | None:
    """The time of a stamp that names its year."""
    head = text[:HEAD_CHARS]
    return stamp_of(text, 0.0) if ":" in head and _ISO.search(head) else None


def _clock_of(texts: Sequence[str], day_t: float) -> list[float]:
    """The stamps of some lines: of those that begin with a whole date, else of all, if a third of them has one."""
    anchors = [t for text in texts if (t := anchor_of(text, day_t)) is not None]
    if anchors and (len(anchors) == 1 or is_rising(anchors)):
        return anchors
    stamps = [t for text in texts if (t := stamp_of(text, day_t)) is not None]
    return stamps if len(stamps) > 1 and len(stamps) * 3 >= len(texts) and is_rising(stamps) else []


def _seconds(parts: Sequence[int], fraction: str | None) -> float:
    if parts[3] > 23 or parts[4] > 59 or parts[5] > 60 or not 1 <= parts[1] <= 12 or not 1 <= parts[2] <= 31:
        raise ValueError("no time")
    return calendar.timegm((*parts, 0, 0, 0)) + (float(f"0.{fraction}") if fraction else 0.0)


def _zone_s(zone: str) -> float:
    if zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:4]) * 60)
