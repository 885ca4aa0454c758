"""Conditions of a shell script: whether they hold, as far as that is known before anything runs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from supervisor.job.shell.expand import MARKS

_NUMBERS: Final = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


class Status(Enum):
    """How a command ends; RAN: a program, which most likely ends well."""

    YES = auto()
    NO = auto()
    MAYBE = auto()
    RAN = auto()


OPPOSITE: Final = {
    Status.YES: Status.NO,
    Status.NO: Status.YES,
    Status.RAN: Status.MAYBE,
    Status.MAYBE: Status.MAYBE,
}


def status_of(holds: bool) -> Status:
    """The status of a condition that is known."""
    return Status.YES if holds else Status.NO


def compare(left: int | None, operator: str, right: int | None) -> Status:
    """The status of a comparison of numbers; None: not known."""
    if left is None or right is None:
        return Status.MAYBE
    order = (left > right) - (left < right)
    holds = {
        "==": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }
    return status_of(holds[operator])


def test(words: Sequence[str], patterns: Sequence[bool] | None) -> Status:
    """``[ ... ]``; with `patterns` ``[[ ... ]]``: which of the words are patterns where they stand on the right."""
    if patterns is not None and "(" not in words and not {"&&", "||"}.isdisjoint(words):
        operator = "||" if "||" in words else "&&"
        at = list(words).index(operator)
        sides = {test(words[:at], patterns[:at]), test(words[at + 1 :], patterns[at + 1 :])}
        decides = Status.YES if operator == "||" else Status.NO
        return decides if decides in sides else Status.MAYBE if Status.MAYBE in sides else OPPOSITE[decides]
    if words[:1] == ["!"]:
        return OPPOSITE[test(words[1:], patterns[1:] if patterns is not None else None)]
    if any(MARKS & set(word) for word in words):
        return Status.MAYBE
    if len(words) <= 1:
        return status_of(bool(words and words[0]))
    if len(words) == 2 and words[0] in {"-z", "-n"}:
        return status_of((words[1] == "") == (words[0] == "-z"))
    return _binary(*words, patterns=patterns) if len(words) == 3 else Status.MAYBE


def _binary(left: str, operator: str, right: str, *, patterns: Sequence[bool] | None) -> Status:
    if operator in {"=", "==", "!="}:
        equal = fnmatch.fnmatchcase(left, right) if patterns is not None and patterns[2] else left == right
        return status_of(equal == (operator != "!="))
    if operator not in _NUMBERS:
        return Status.MAYBE
    if patterns is not None:  # [[ counts nothing as 0; [ has no number then, and fails
        left, right = left or "0", right or "0"
    elif not left or not right:
        return Status.NO
    if not (re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right)):
        return Status.MAYBE
    return compare(int(left), _NUMBERS[operator], int(right))
