"""Regular expressions, numbers and host lists. Our patterns are compiled on first use; a user's cannot hang on any line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final, cast


class Lazy:
    """A pattern that is compiled on first use. The methods mirror those of `re.Pattern`.

    Starting ``stoker diagnose`` uses only a few patterns. Compiling all hundred of them takes three times as long as
    Python's own startup.
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
        """Return the first match at or after `at`."""
        return self._pattern().search(text, at)

    def match(self, text: str) -> re.Match[str] | None:
        """Return a match at the start of the text."""
        return self._pattern().match(text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Return a match for the whole text."""
        return self._pattern().fullmatch(text)

    def findall(self, text: str) -> list[str]:
        """Return all matches, or only the text of the group if the pattern has one."""
        return self._pattern().findall(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yield all matches in order."""
        return self._pattern().finditer(text)

    def sub(self, to: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Replace all matches."""
        return self._pattern().sub(to, text)


MOST_DIGITS = 18


def whole(digits: str) -> int:
    """Convert digits from a log to an int. Only the first 18 are used, which is enough for any rank, pid or size.

    `int` refuses more than 4300 digits (Python docs, "Integer string conversion length limitation").
    """
    return int(digits[:MOST_DIGITS])


def compile_linear(pattern: str) -> re.Pattern[str]:
    """Compile a user's pattern so that it cannot hang on any line.

    Python's `re` backtracks. A pattern like ``(a+)+$`` takes minutes on a single long line and holds the interpreter
    for that time. RE2 takes time proportional to the line's length, but has no lookaround or backreferences.

    Raises:
        ValueError: the pattern is not a valid regular expression or could hang. The message says why, without the pattern.
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
    return cast("re.Pattern[str]", compiled)  # it has the same methods


# -- SLURM's short form of host names ---------------------------------------------------------------

MOST_HOSTS: Final = 65_536
_PART: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def host_names(text: str, most: int = MOST_HOSTS) -> tuple[str, ...]:
    """Expand SLURM's short form ``n[01-03,07],login1`` into up to `most` names, in order. Other text is returned as is.

    See "HOSTLIST EXPRESSIONS" in scontrol(1) and slurm.conf(5). Ranges keep their leading zeros.
    """
    found: list[str] = []
    for entry in filter(None, _entries(text.strip())):
        parts = [_choices(inside) if inside else (plain,) for inside, plain in _PART.findall(entry)]
        for names in product(*parts):
            if len(found) >= most:
                return tuple(found)
            found.append("".join(names))
    return tuple(found)


def _entries(text: str) -> Iterator[str]:
    """Yield the parts between commas that are not inside brackets."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _choices(inside: str) -> tuple[str, ...]:
    """Expand ``01-03,07`` to 01, 02, 03 and 07."""
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            found.append(part)
            continue
        first, last = match[1], match[2] or match[1]
        numbers = range(int(first), min(int(last), int(first) + MOST_HOSTS) + 1)
        found += [str(number).zfill(len(first)) for number in numbers]
    return tuple(found)
