"""Regular expressions: ours, compiled on first use, and a user's own, which must not hang on any line; numbers in logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol, cast


class Lazy:
    """A pattern by its text, compiled on first use. The methods are those of `re.Pattern`.

    A start of ``stoker diagnose`` uses few of them; compiling all hundred costs three times Python's own
    start.
    """

    __slots__ = ("_flags", "_made", "text")

    def __init__(self, text: str, flags: int = 0) -> None:
        self.text = text
        self._flags = flags
        self._made: re.Pattern[str] | None = None

    def _pattern(self) -> re.Pattern[str]:
        if self._made is None:
            self._made = re.compile(self.text, self._flags)
        return self._made

    def search(self, text: str, at: int = 0) -> re.Match[str] | None:
        """The first match anywhere from `at` on."""
        return self._pattern().search(text, at)

    def match(self, text: str) -> re.Match[str] | None:
        """A match at the beginning."""
        return self._pattern().match(text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """A match of the whole text."""
        return self._pattern().fullmatch(text)

    def findall(self, text: str) -> list[str]:
        """All matches, or their one group."""
        return self._pattern().findall(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """All matches in turn."""
        return self._pattern().finditer(text)

    def sub(self, to: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Replace all matches."""
        return self._pattern().sub(to, text)


MOST_DIGITS = 18


def whole(digits: str) -> int:
    """A whole number from digits in a log; of more than 18, too many for a rank, a pid or a size, the first 18.

    `int` refuses more than 4300 digits (Python's guide, "Integer string conversion length limitation").
    """
    return int(digits if len(digits) <= MOST_DIGITS else digits[:MOST_DIGITS])


class LinearMatch(Protocol):
    """A match."""

    def group(self, number: int, /) -> str | None:
        """The text of a group; None if it did not take part in the match."""


class LinearPattern(Protocol):
    """A compiled pattern."""

    @property
    def groups(self) -> int:
        """How many groups it has."""

    def search(self, text: str, /) -> LinearMatch | None:
        """The first match anywhere."""


def compile_linear(pattern: str) -> LinearPattern:
    """Compile a user's pattern so that no line can make it hang.

    Python's `re` backtracks: a pattern like ``(a+)+$`` takes minutes on one long line, and holds the interpreter while
    it does. RE2 takes time in proportion to the line, and lacks look-around and back-references.

    Raises:
        ValueError: it is not a valid regular expression, or one that could hang; the message says why, without the pattern.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None
    except (RecursionError, OverflowError):
        raise ValueError("is nested too deeply, or repeats too often") from None
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
