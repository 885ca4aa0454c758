"""A user's own regular expressions, run so that no line can make them hang.

Python's `re` backtracks: a pattern like ``(a+)+$`` takes minutes on one long line, and holds the interpreter while it
does. RE2 takes time in proportion to the line, and has neither look-around nor back-references for it.
"""

from __future__ import annotations

import re
from typing import Protocol, cast


class LinearMatch(Protocol):
    """What was found."""

    def group(self, number: int, /) -> str | None:
        """The text of a group; None where it took no part."""


class LinearPattern(Protocol):
    """A compiled pattern."""

    @property
    def groups(self) -> int:
        """How many groups it has."""

    def search(self, text: str, /) -> LinearMatch | None:
        """The first match anywhere."""


def compile_linear(pattern: str) -> LinearPattern:
    """Compile a pattern.

    Raises:
        ValueError: it is no regular expression, or only one that could hang; the message says why, without the pattern.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)  # type: ignore[no-untyped-call]
    except re2.error:
        raise ValueError(
            "looks around or refers back, which could hang on a long line: write it without (?=, (?!, (?<, \\1"
        ) from None
    return cast("LinearPattern", compiled)
