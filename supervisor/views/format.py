"""Number formatting for display: fixed widths, units, and durations in their two largest units. Pure.

Unknown values (`None`, NaN) are always rendered as a dash, never as zero.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.run.records import Verdict

DASH = "–"
MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86_400
STALE_S = 10.0
VERY_STALE_S = 60.0


def whole(value: float | None) -> str:
    """Format a count with a thousands separator, such as ``1 840``."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:,.0f}".replace(",", " ")


def short(value: float | None) -> str:
    """Format a rate in four or five characters, such as ``27.2k``."""
    if value is None or not math.isfinite(value):
        return DASH
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def sure(verdict: Verdict) -> str:
    """Format a verdict's confidence, such as ``92 % sure``, or return "" if the error message leaves no doubt."""
    return "" if verdict.is_plain_error else f"{100 * verdict.confidence:.0f} % sure"


def loss(value: float | None) -> str:
    """Format a loss to its significant digits. NaN and infinity are shown as such, because they matter."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return str(value)
    magnitude = abs(value)
    if magnitude >= 1000 or (0 < magnitude < 1e-3):
        return f"{value:.2e}"
    return f"{value:.1f}" if magnitude >= 100 else f"{value:.3f}"


def rate(value: float | None) -> str:
    """Format a learning rate, such as ``2.9e-4``."""
    if value is None or not math.isfinite(value):
        return DASH
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(ratio: float | None, *, digits: int = 0) -> str:
    """Format a ratio as a percentage, such as ``97 %``."""
    if ratio is None or not math.isfinite(ratio):
        return f"{DASH} %"
    return f"{100 * ratio:.{digits}f} %"


def part(ratio: float) -> str:
    """Format progress as ``37%``, rounding down so that ``100%`` appears only when everything is done."""
    return f"{math.floor(100 * ratio + 1e-9)}%"  # 29 of 100 is 0.28999…


def memory(value_bytes: float | None) -> str:
    """Format a byte count as GiB, or as MiB if it is below 1 GiB. There is no space before the unit: ``61.2G``."""
    if value_bytes is None or not math.isfinite(value_bytes):
        return DASH
    gib = value_bytes / 2**30
    if gib >= 100:
        return f"{gib:.0f}G"
    return f"{gib:.1f}G" if gib >= 1 else f"{value_bytes / 2**20:.0f}M"


def memory_pair(used_bytes: float | None, total_bytes: float | None) -> str:
    """Format used and total memory as ``61.2/80 GiB``, omitting the total if it is unknown."""
    if used_bytes is None:
        return DASH
    used = f"{used_bytes / 2**30:.1f}"
    return f"{used} GiB" if total_bytes is None else f"{used}/{total_bytes / 2**30:.0f} GiB"


def seconds(value_s: float | None) -> str:
    """Format a short duration, such as ``1.21 s`` or ``118 ms``."""
    if value_s is None or not math.isfinite(value_s):
        return DASH
    if value_s < 1:
        return f"{1000 * value_s:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 10 else f"{value_s:.1f} s"


def about(say: Callable[[float | None], str]) -> Callable[[float | None], str]:
    """Wrap the formatter `say` to prefix any value with a tilde (``~105 ms``), for values that were derived, not logged."""

    def shown(value: float | None) -> str:
        text = say(value)
        return text if text == DASH else f"~{text}"

    return shown


def duration(value_s: float | None) -> str:
    """Format a duration in its two largest units: ``41 m 07 s``, ``3 h 12 m``, ``2 d 04 h``."""
    if value_s is None or not math.isfinite(value_s):
        return DASH
    total = max(0, int(value_s))
    if total < MINUTE_S:
        return f"{total} s"
    if total < HOUR_S:
        return f"{total // MINUTE_S} m {total % MINUTE_S:02d} s"
    if total < DAY_S:
        return f"{total // HOUR_S} h {total % HOUR_S // MINUTE_S:02d} m"
    return f"{total // DAY_S} d {total % DAY_S // HOUR_S:02d} h"


def span(value_s: float) -> str:
    """Format a duration in as few units as possible: ``0``, ``45 s``, ``10 m``, ``1 h 30 m``."""
    text = duration(value_s)
    return "0" if text == "0 s" else re.sub(r" 00 \w$", "", text)


def clock(value_s: float | None) -> str:
    """Format a duration as ``00:41:07``, which keeps a constant width while it counts. Days go in front."""
    if value_s is None or not math.isfinite(value_s):
        return "--:--:--"
    total = max(0, int(value_s))
    days, rest = divmod(total, DAY_S)
    text = f"{rest // HOUR_S:02d}:{rest % HOUR_S // MINUTE_S:02d}:{rest % MINUTE_S:02d}"
    return f"{days}d {text}" if days else text


def age(value_s: float | None) -> str:
    """Format a reading's age in a single unit: ``2 s``, ``4 m``, ``3 h``."""
    if value_s is None or not math.isfinite(value_s):
        return DASH
    total = max(0, int(value_s))
    if total < MINUTE_S:
        return f"{total} s"
    if total < HOUR_S:
        return f"{total // MINUTE_S} m"
    return f"{total // HOUR_S} h" if total < DAY_S else f"{total // DAY_S} d"


def time_of_day(t: float | None) -> str:
    """Format a Unix time as ``14:12:05`` in the local time zone."""
    return DASH if t is None else time.strftime("%H:%M:%S", time.localtime(t))


def date_and_time(t: float) -> str:
    """Format a Unix time as ``2026-11-25 14:12:05`` in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def day_and_time(t: float, now: float) -> str:
    """Format a local time as ``06:41`` if it is today, else ``tomorrow 06:41`` or ``2026-11-25 06:41``."""
    at = time.localtime(t)
    day, clock = time.strftime("%Y-%m-%d", at), time.strftime("%H:%M", at)
    today, tomorrow = (time.strftime("%Y-%m-%d", time.localtime(now + days * DAY_S)) for days in (0, 1))
    return clock if day == today else f"{'tomorrow' if day == tomorrow else day} {clock}"


def ranges(numbers: tuple[int, ...]) -> str:
    """Collapse numbers into sorted ranges, such as ``0-3,7``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def near_path(path: str) -> str:
    """Shorten a path the way a user would type it, relative to the current or home directory if it is inside one."""
    for base, sign in ((os.getcwd(), "./"), (os.path.expanduser("~"), "~/")):
        if path.startswith(base.rstrip("/") + "/"):
            return sign + path[len(base.rstrip("/")) + 1 :]
    return path


def short_path(path: str) -> str:
    """Return the last two components of a path, enough to recognize a file or a rank's stream."""
    return "/".join(path.rstrip("/").split("/")[-2:])


def short_id(run_id: str) -> str:
    """Return the two-word part of a run ID, without the date: ``brave-otter``."""
    parts = run_id.split("-", 2)
    return parts[2] if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() else run_id
