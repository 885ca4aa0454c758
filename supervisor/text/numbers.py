"""Numbers as logs print them, and how far a log was read, rounded for people."""

from __future__ import annotations

import math

MOST_DIGITS = 18


def whole(digits: str) -> int:
    """A whole number from digits out of a log; of more than 18, which are none of a rank, a pid or a size, the first 18.

    `int` refuses more than 4300 digits (Python's guide, "Integer string conversion length limitation").
    """
    return int(digits if len(digits) <= MOST_DIGITS else digits[:MOST_DIGITS])


def read_amounts(read_bytes: int | None, size_bytes: int | None) -> tuple[str, str, str] | None:
    """How much was read, of how much, in which unit: ``("120", "600", "MB")``; None where nothing is known to be unread.

    What was read is rounded down and the whole up, so that they never look alike.
    """
    if read_bytes is None or size_bytes is None:
        return None
    unit, step = next(
        (known for known in ((1e9, 0.1), (1e6, 1.0), (1e3, 1.0)) if size_bytes >= 10 * known[0]), (1.0, 1.0)
    )
    digits = 0 if step == 1.0 else 1
    done = math.floor(read_bytes / unit / step) * step
    whole = math.ceil(size_bytes / unit / step) * step
    name = {1e9: "GB", 1e6: "MB", 1e3: "KB"}.get(unit, "bytes")
    return f"{done:.{digits}f}", f"{whole:.{digits}f}", name


def read_to(read_bytes: int | None, size_bytes: int | None) -> str:
    """``log read to 120 of 600 MB``; empty where nothing is known to be unread."""
    amounts = read_amounts(read_bytes, size_bytes)
    return "log read to {} of {} {}".format(*amounts) if amounts is not None else ""
