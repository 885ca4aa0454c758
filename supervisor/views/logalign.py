"""Neighbouring lines that differ in their numbers only, with the numbers one below the other (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)")
_BLANKS = re.compile(r" {2,}")
# Longer lines do not fit beside each other anyway.
MOST_CHARS = 400


def aligned(texts: Sequence[str]) -> list[str]:
    """The texts, those of one shape side by side padded so that their numbers stand in columns."""
    shown: list[str] = []
    for shape, group in groupby(texts, key=_shape):
        same = list(group)
        shown += _columns(same) if shape and len(same) > 1 else same
    return shown


def _shape(text: str) -> str:
    """What is left of a line without its numbers; empty where there is nothing to align."""
    if len(text) > MOST_CHARS or not _NUMBER.search(text):
        return ""
    return _BLANKS.sub(" ", _NUMBER.sub("#", text))


def _columns(texts: Sequence[str]) -> list[str]:
    numbers = [_NUMBER.findall(text) for text in texts]
    between = [_NUMBER.split(text) for text in texts]
    # A writer may have padded its numbers already: blanks before a number count as part of it.
    widths = [
        max(len(gaps[i]) + len(mine[i]) for gaps, mine in zip(between, numbers, strict=True))
        for i in range(len(numbers[0]))
    ]
    shown: list[str] = []
    for mine, gaps in zip(numbers, between, strict=True):
        parts = [
            gap + " " * (width - len(gap) - len(said)) + said
            for gap, said, width in zip(gaps, mine, widths, strict=False)
        ]
        shown.append("".join(parts) + gaps[-1])
    return shown
