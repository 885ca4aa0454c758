"""Converts numbers, units and durations, as printed in logs, to floats in base units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

GIB = 1 << 30
# PyTorch's tools print GiB as "GB" or "G", so these are read as GiB.
_MEMORY = {
    "": 0.0, "b": 1.0, "bytes": 1.0, "kb": 1024.0, "kib": 1024.0, "k": 1024.0, "mb": GIB / 1024, "mib": GIB / 1024, "m": GIB / 1024,
    "mo": GIB / 1024, "gb": float(GIB), "gib": float(GIB), "g": float(GIB), "tb": GIB * 1024.0, "tib": GIB * 1024.0,
}  # fmt: skip
_SECONDS = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "us": 1e-6, "µs": 1e-6, "usec": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0,
    "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_CLOCK = re.compile(r"\s*(?:(\d+)\s*days?,?\s*|(\d+)[-.](?=\d\d:\d\d:))?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)\s*$")
_CLOCK_S = {1: 86400.0, 2: 86400.0, 3: 3600.0, 4: 60.0, 5: 1.0}
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Zµ]+)")


class How(IntEnum):
    """The conversion of a value's text to a number."""

    NUMBER = 0  # times scale
    WHOLE = 1  # an integer, also "31K" and "1,149"
    INVERSE = 2  # a rate of steps to the seconds of one
    DURATION = 3  # a clock or spelt-out time
    MEMORY = 4  # without a unit: bytes when huge, MiB when large, GiB when small
    SHARE = 5  # without a percent sign: percent when above 1


class Conversion(NamedTuple):
    """The kind of conversion, and the factor."""

    how: How
    scale: float = 1.0


PLAIN = Conversion(How.NUMBER)
WHOLE = Conversion(How.WHOLE)
# Logs rarely print more digits of a measurement; more are conversion noise (863.5 ms as 0.8635000000000002 s).
_SIGNIFICANT = 12
_EXPONENTS = {1.0: "", 1e-6: "e-6", 1e-3: "e-3", 0.01: "e-2", 1e3: "e3"}
_FLOATS = msgspec.json.Decoder(list[float])
_WHOLES = msgspec.json.Decoder(list[int])


def convert(conversion: Conversion, text: str) -> float | None:
    """The number, to `_SIGNIFICANT` digits where it had to be computed, or None when the text holds none that can be meant (a sentinel, a fraction of a step)."""
    how, scale = conversion
    if how is How.DURATION:
        duration = seconds(text)
        return rounded(duration) if duration is not None else None
    try:
        number = float(text.replace(",", "").rstrip(".") if "," in text or text[-1:] == "." else text)
    except ValueError:
        return None
    match how:
        case How.NUMBER:
            # A number that is only read keeps all digits; a product shows the noise of binary fractions (0.1 * 3).
            return rounded(number * scale) if scale % 1024 and scale != 1.0 else number * scale
        case How.WHOLE:
            number *= scale
            # Not NaN, not infinite.
            return int(number) if number == number // 1 and abs(number) < 1e15 else None
        case How.INVERSE:
            return rounded(scale / number) if number > 0 else None
        case How.MEMORY:
            return number * (1 if number >= 1e7 else GIB / 1024 if number >= 256 else GIB)
        case How.SHARE:
            if number < 0:
                return None
            return rounded(number / 100 if number > 1 else number * scale)


def numbers(conversion: Conversion, texts: Sequence[str]) -> Sequence[float | None]:
    """`convert` for each of many texts; where all are short and plain, msgspec reads them in an eighth of the time of `float`."""
    found = _by_msgspec(conversion, texts) if max(map(len, texts)) <= _SIGNIFICANT else None
    return found if found is not None else [convert(conversion, text) for text in texts]


def _by_msgspec(conversion: Conversion, texts: Sequence[str]) -> Sequence[float] | None:
    """Texts of plain numbers, read as one JSON list; None if they are not, or their scale is not a power of 10 or 1024."""
    how, scale = conversion
    exponent = _EXPONENTS.get(scale, "" if scale % 1024 == 0 else None)
    if exponent is None or how not in {How.NUMBER, How.WHOLE} or (how is How.WHOLE and scale != 1):
        return None
    listed = "[" + f"{exponent},".join(texts) + exponent + "]"
    if "[-0" in listed or ",-0" in listed:
        return None  # msgspec loses the sign of "-0"
    try:
        found = (_WHOLES if how is How.WHOLE else _FLOATS).decode(listed)
    except msgspec.DecodeError:
        return None  # leading zeros, NaN
    if len(found) != len(texts):
        return None  # "1,234"
    return found if exponent or scale == 1 else [number * scale for number in found]


def rounded(number: float) -> float:
    """The number to `_SIGNIFICANT` digits."""
    return float(f"{number:.{_SIGNIFICANT}g}")


def memory_conversion(unit: str) -> Conversion | None:
    """The conversion of a memory value with this unit; None for any other unit."""
    factor = _MEMORY.get(unit.lower())
    if factor is None:
        return None
    return Conversion(How.NUMBER, factor) if factor else Conversion(How.MEMORY)


def time_scale(unit: str) -> float | None:
    """Seconds per `unit`, counting only the part before a slash; None if it is not a time."""
    return _SECONDS.get(unit.lower().partition("/")[0].strip())


def magnitude(unit: str) -> float:
    """The factor of K, M, B after a count."""
    return {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}.get(unit.lower(), 1.0)


def seconds(text: str) -> float | None:
    """A duration in seconds: `03:12`, `1 day, 2:03:04`, `11h4m12s`, `10m, 56s`."""
    parts = duration_parts(text)
    return sum((float(text[begin:end]) * scale for begin, end, scale in parts), 0.0) if parts else None


def duration_parts(text: str) -> list[tuple[int, int, float]]:
    """The numbers of a duration: start, end, and seconds per unit; empty if it is not a duration."""
    if clock := _CLOCK.match(text):
        return [(*clock.span(group), _CLOCK_S[group]) for group in _CLOCK_S if clock[group] is not None]
    parts = [(*part.span(1), _SECONDS.get(part[2].lower())) for part in _PARTS.finditer(text)]
    known = [(begin, end, scale) for begin, end, scale in parts if scale is not None]
    return known if len(known) == len(parts) else []


RANK = "rank"
# The rank of a bar's count: a named counter takes precedence.
BAR_RANK = 2


class Reading(NamedTuple):
    """One value of a line: canonical field (or "" with its own name), its position, its conversion."""

    field: str
    name: str
    rank: int
    start: int
    end: int
    conversion: Conversion
    weak: bool = False


class Parsed(NamedTuple):
    """The report of a line. `pair`: a counter and a total that count only if the counter is the named step (or one off).

    `heading`: the line has only a step or epoch; the lines below may belong to it. `once`: the same line with
    other digits may mean something else, so its shape is not stored. `off_curve`: its loss is not a point of
    the curve: a mean over the whole run, or one of the outputs that the total is made of. `evaluates`: its
    last value is of held-out data. `plain_time`: nothing on it shows whether its time is that of one step or
    of all since the line before.
    """

    readings: tuple[Reading, ...]
    pair: tuple[Reading, Reading] | None = None
    heading: bool = False
    settings: bool = False
    once: bool = False
    off_curve: bool = False
    evaluates: bool = False
    plain_time: bool = False


NOTHING = Parsed(())


def shifted(parsed: Parsed, by: int) -> Parsed:
    """The result for a part of a line that starts `by` characters after the start of the line."""
    if not by:
        return parsed

    def moved(reading: Reading) -> Reading:
        return reading._replace(start=reading.start + by, end=reading.end + by)

    pair = (moved(parsed.pair[0]), moved(parsed.pair[1])) if parsed.pair is not None else None
    return parsed._replace(readings=tuple(map(moved, parsed.readings)), pair=pair)


class Found(NamedTuple):
    """All readings of a line before any choice, and its number of setting names."""

    readings: list[Reading]
    settings: int
