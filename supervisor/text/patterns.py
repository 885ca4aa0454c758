"""Regular expressions that are compiled when first used.

A start of ``stoker diagnose`` reaches few of them; compiling the hundred that
there are costs three times Python's own start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator


class Lazy:
    """A pattern by its text. The methods are those of `re.Pattern`."""

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
