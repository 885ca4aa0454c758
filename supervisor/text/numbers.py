"""Numbers as logs print them."""

from __future__ import annotations

MOST_DIGITS = 18


def whole(digits: str) -> int:
    """A whole number from digits out of a log; of more than 18, which are none of a rank, a pid or a size, the first 18.

    `int` refuses more than 4300 digits (Python's guide, "Integer string conversion length limitation").
    """
    return int(digits if len(digits) <= MOST_DIGITS else digits[:MOST_DIGITS])
