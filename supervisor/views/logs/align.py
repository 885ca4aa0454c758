"""Neighbouring lines that differ in their numbers only, with the numbers one below the other (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

# It begins with the characters that a number may begin with: those are looked for a third faster than any place.
_NUMBER = re.compile(r"([-+\d](?<![\w.].)\d*(?<=\d)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w))")
_BLANKS = re.compile(r" {2,}")
# Longer lines do not fit beside each other anyway.
MOST_CHARS = 400


def aligned(texts: Sequence[str]) -> list[str]:
    """The texts, those of one shape side by side padded so that their numbers stand in columns."""
    shown: list[str] = []
    cut = [_NUMBER.split(text) if len(text) <= MOST_CHARS else [text] for text in texts]
    for shape, group in groupby(cut, key=_shape):
        same = list(group)
        shown += _columns(same) if len(shape) > 1 and len(same) > 1 else ["".join(pieces) for pieces in same]
    return shown


def _shape(pieces: Sequence[str]) -> tuple[str, ...]:
    """What is left of a line without its numbers: of the gaps between them, without how wide they are."""
    return tuple(_BLANKS.sub(" ", gap) if "  " in gap else gap for gap in pieces[::2])


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of gap, number, gap, …, gap. Blanks before a number count as part of it: its writer may have padded it."""
    widths = [
        max(len(pieces[i]) + len(pieces[i + 1]) for pieces in lines) for i in range(0, len(lines[0]) - 1, 2)
    ]
    shown: list[str] = []
    for pieces in lines:
        parts = [
            gap + " " * (width - len(gap) - len(said)) + said
            for gap, said, width in zip(pieces[::2], pieces[1::2], widths, strict=False)
        ]
        shown.append("".join(parts) + pieces[-1])
    return shown
