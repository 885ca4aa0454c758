"""Parse the timestamp of a log line (pure except for the local time zone)."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

# A stamp is at the start of a line. Later text may quote any date.
HEAD_CHARS = 80
# A file's last stamp and its modification time agree to within this, once the zone is known.
AGREE_S = 120.0
ZONE_S = 900.0
# The world's zone offsets in quarters of an hour: whole hours, and the few exceptions (IANA, 2025b).
ZONES = {*(4 * hour for hour in range(-12, 15)), -38, -14, -10, 14, 18, 22, 23, 26, 35, 38, 42, 51, 55}

# An unambiguous stamp: a whole date at the very start of a line, as written by glog, c10d and logging.
_ANCHOR = re.compile(
    r"[\[(]?(?:[IWEF](?:\d{4})?\d{4} \d\d:\d\d:\d\d[. ]|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d"
    r"|\d\d/\d\d(?:/\d\d(?:\d\d)?)? \d\d:\d\d:\d\d(?:[.,]\d+)? |\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? )"
)

_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
# "23-08-02 15:39:42", and "08/02/23 15:39:42" as rich and others write it: month first, unless above 12.
_SHORT = re.compile(
    r"(?:^|[\[( ])(?:(\d\d)-(\d\d)-(\d\d)|(\d\d)/(\d\d)/(\d{4}|\d\d)),? (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?!\d)"
)
# A leading two-digit number below this year is a day.
FIRST_YEAR = 2010
# The most common form of a date, for cases that need no parsing.
_DATE = re.compile(rb"20\d\d[-/]\d\d[-/]\d\d[T_ ]\d\d:\d\d:\d\d")
_GLOG = re.compile(r"\b[IWEFD](\d{4})?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
# Month and day, as written by mmengine. Anywhere except at the start, two numbers are a counter.
_MONTH_DAY = re.compile(
    r"(?:\[[^\]]*\]:? ?|\d+: ?)?[\[(]?(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?=[\]), ]|$)"
)
# Written by syslog and `date`: "Nov 20 10:00:01", "Fri Nov 20 10:00:01 UTC 2026".
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_SYSLOG = re.compile(
    r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d\d?) (\d\d):(\d\d):(\d\d)(?: (?:[A-Z]{3,4} )?(20\d\d)\b)?"
)
_EPOCH = re.compile(r'"(?:t|ts|time|timestamp)": ?"?(1[5-9]\d{8}(?:\.\d{1,9})?)')
_PATH_DATE = re.compile(r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)(?!\d)")
DAY_S = 86400.0
# The last line with a stamp is the log's end if at most this many lines follow it.
END_LINES = 3
# Precedes a duration, which is not a time of day.
_LEFT = re.compile(r"\b(?:eta|remaining|elapsed)\b\W{0,3}$", re.IGNORECASE)
_CLOCK = re.compile(r"(?:^|[\[( ])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?=[\]),: |]|$)")


def stamp_of(
    text: str, day_t: float, latest_t: float | None = None, *, bare_clock: bool = True
) -> float | None:
    """Return the timestamp at the start of a line, in seconds. If it has no time zone, assume UTC.

    Args:
        text: the line.
        day_t: a time in UTC seconds, close to when the line was written, for timestamps without a year or a day.
        latest_t: a time by which the line existed (default: `day_t`). A timestamp without a year is never later than this.
        bare_clock: whether a time without a date counts.
    """
    head = text[:HEAD_CHARS]
    if ":" not in head:
        return None
    try:
        if (t := _dated(head, day_t if latest_t is None else latest_t)) is not None:
            return t
        if (found := _of_some_year(head)) is not None:
            year, rest, fraction = found
            if year:
                return _seconds([int(year), *rest], fraction)
            known = datetime.fromtimestamp(day_t, UTC).year
            times = [_seconds([near, *rest], fraction) for near in (known - 1, known, known + 1)]
            until_t = (day_t if latest_t is None else latest_t) + DAY_S  # zones differ
            return min((t for t in times if t <= until_t), key=lambda t: abs(t - day_t), default=None)
        if match := _EPOCH.search(head):
            return float(match[1])
        if bare_clock and (match := _CLOCK.search(head)) and not _LEFT.search(head, 0, match.start(1)):
            hour, minute, second, fraction = match.groups()
            day = datetime.fromtimestamp(day_t, UTC)
            t = _seconds([day.year, day.month, day.day, int(hour), int(minute), int(second)], fraction)
            return t + DAY_S * round((day_t - t) / DAY_S)
    except (ValueError, OverflowError):  # such as 2026-99-99
        return None
    return None


def whole_date(text: str, latest_t: float) -> float | None:
    """Parse a timestamp that has a year. Return None if there is none. `latest_t` is a time by which the line existed."""
    head = text[:HEAD_CHARS]
    try:
        return _dated(head, latest_t) if ":" in head else None
    except (ValueError, OverflowError):
        return None


class LineClock:
    """Reads the timestamps of a log's lines in turn. A time without a day is assumed to be near the last one with a day.

    Args:
        latest_t: when the log was last written. It supplies the day until a line does.
    """

    def __init__(self, latest_t: float) -> None:
        self._latest_t = latest_t
        self._day_t: float | None = None  # of the newest line whose day is known

    def enter(self, data: bytes) -> None:
        """Read the day from the first date in the next chunk of the log, if that date is at the start of its line."""
        if (found := _DATE.search(data)) is None:
            return
        begin = max(data.rfind(sign, 0, found.start()) for sign in (b"\n", b"\r")) + 1
        t = whole_date(data[begin : begin + HEAD_CHARS].decode("utf-8", "replace"), self._latest_t)
        if t is not None:
            self._day_t = max(t, self._day_t or t)

    def read(self, text: str) -> float | None:
        """Return the timestamp of the next line."""
        t = known_t = whole_date(text, self._latest_t)
        if t is None:
            t = stamp_of(text, self._latest_t if self._day_t is None else self._day_t, self._latest_t)
        if t is not None and (self._day_t is not None or known_t is not None):
            self._day_t = t
        return t


def day_of_path(path: str, latest_t: float) -> float | None:
    """Return noon on the last date in a path, as in "runs/20251130_090528/a.log" and "2025-11-30/x.log"."""
    for date in reversed(_PATH_DATE.findall(path)):
        with suppress(ValueError):
            t = _seconds([*map(int, date), 12, 0, 0], None)
            if t <= latest_t + DAY_S:
                return t
    return None


def is_rising(values: Sequence[float]) -> bool:
    """Check whether at least nine in ten steps do not go backward, as expected of the timestamps of a single writer."""
    return sum(b >= a for a, b in pairwise(values)) >= 0.9 * (len(values) - 1)


def shift_of(last_stamp_t: float, written_t: float) -> float:
    """Return the shift from a file's timestamps to wall time, in the zone implied by its last change or else the local one."""
    quarters = round((written_t - last_stamp_t) / ZONE_S)
    shift = quarters * ZONE_S
    agrees = -quarters in ZONES and abs(written_t - last_stamp_t - shift) <= AGREE_S
    return shift if agrees else local_shift(written_t)


def local_shift(t: float) -> float:
    """Return the shift from this machine's local timestamps to wall time."""
    wall = datetime.fromtimestamp(t, UTC)
    return (wall - wall.astimezone().replace(tzinfo=UTC)).total_seconds()


class Span(NamedTuple):
    """When a log starts and ends according to its own timestamps, in wall-clock seconds.

    `is_dated` means that the day is known from a full date, the path, or a last timestamp that matches the last write.
    `is_copy` means that the last timestamp does not match the last write in any time zone, so the file was copied.
    """

    began_t: float
    over_t: float
    is_dated: bool
    is_copy: bool


def span_of(head: Sequence[str], tail: Sequence[str], written_t: float, path: str = "") -> Span | None:
    """Return when a log starts and ends, or None if its lines have no timestamps.

    Args:
        head: the log's first lines.
        tail: the log's last lines.
        written_t: when the log was last written.
        path: the log's path, which may contain its day.
    """
    # Stamps that begin in the second half do not show the beginning. They come from a save at the end, for example.
    if all(stamp_of(text, written_t) is None for text in head[: len(head) // 2 + 1]):
        return None
    # A copy was written later than its lines, so a year in the lines or the path takes precedence.
    dates = [t for text in (*head, *tail) if (t := whole_date(text, written_t)) is not None]
    known_t = max(dates) if dates else day_of_path(path, written_t)
    day_t = known_t if known_t is not None else written_t
    first = [t for _, t in _clock_of(head, day_t, written_t)]
    last = _clock_of(tail, day_t, written_t)
    if not first or not last or first[0] > last[-1][1]:
        return None
    at, last_t = last[-1]
    shift = shift_of(last_t, written_t)
    agrees = abs(last_t + shift - written_t) <= AGREE_S
    is_end = sum(bool(text.strip()) for text in tail[at + 1 :]) <= END_LINES
    return Span(first[0] + shift, last_t + shift, known_t is not None or agrees, is_end and not agrees)


def _of_some_year(head: str) -> tuple[str | None, list[int], str | None] | None:
    """Parse a timestamp whose format may omit the year. Return its year (if present), month to second, and fraction."""
    if match := _GLOG.search(head):
        year, *date, fraction = match.groups()
        return year, [int(part) for part in date], fraction
    if (match := _MONTH_DAY.match(head)) and 1 <= int(match[1]) <= 12:
        *date, fraction = match.groups()
        return None, [int(part) for part in date], fraction
    if match := _SYSLOG.search(head):
        month, *date, year = match.groups()
        return year, [_MONTHS.index(month) // 3 + 1, *(int(part) for part in date)], None
    return None


def _dated(head: str, latest_t: float) -> float | None:
    """Parse a timestamp that includes its year."""
    if match := _ISO.search(head):
        *date, fraction, zone = match.groups()
        t = _seconds([int(part) for part in date], fraction)
        if zone is None or zone == "Z":
            return t
        ahead_s = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        return t - ahead_s if zone[0] == "+" else t + ahead_s
    if not (match := _SHORT.search(head)):
        return None
    *found, fraction = match.groups()
    one, two, three, *clock = (int(part) for part in found if part is not None)
    if match[1] is None:
        month, day, year = (two, one, three) if one > 12 else (one, two, three)
    else:
        year, month, day = one, two, three
        if not FIRST_YEAR <= 2000 + one <= datetime.fromtimestamp(latest_t, UTC).year:
            year, day = day, year
    t = _seconds([year if year > 99 else 2000 + year, month, day, *clock], fraction)
    return t if t <= latest_t + DAY_S else None


def _clock_of(texts: Sequence[str], day_t: float, latest_t: float) -> list[tuple[int, float]]:
    """Return (index, time) for lines that start with a full date, or for all timestamped lines if at least a third are."""
    stamps = [(at, t) for at, text in enumerate(texts) if (t := stamp_of(text, day_t, latest_t)) is not None]
    anchors = [(at, t) for at, t in stamps if _ANCHOR.match(texts[at])]
    if anchors and is_rising([t for _, t in anchors]):
        return anchors
    is_clock = len(stamps) > 1 and len(stamps) * 3 >= len(texts) and is_rising([t for _, t in stamps])
    return stamps if is_clock else []


def _seconds(parts: Sequence[int], fraction: str | None) -> float:
    if parts[3] > 23 or parts[4] > 59 or parts[5] > 60 or not 1 <= parts[2] <= 31:
        raise ValueError("no time")
    return calendar.timegm(tuple(parts)) + float(f"0.{fraction or 0}")
