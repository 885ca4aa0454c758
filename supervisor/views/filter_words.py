r"""Parses a typed filter into words: the logs and the list of runs use the same language (pure).

``error`` (any case), ``"two words"``, ``/re/`` (any case unless it has a capital), each with ``-`` in front to exclude matches;
``field:value``, ``field=value`` and the comparisons ``< > <= >= !=``, for the fields that the caller names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol, cast

_WORD = re.compile(r'(-?)(?:/((?:\\.|[^/\\])+)/(?=\s|$)|"([^"]*)"|(\S+))\s*')
_FIELD = re.compile(r"([a-z_]+)(<=|>=|!=|[:=<>])(.*)", re.IGNORECASE)


class BadQueryError(ValueError):
    """The typed text is not a valid query; the message is one line."""


class Found(Protocol):
    """A match of an expression."""

    def span(self) -> tuple[int, int]:
        """Its start and end."""


class Pattern(Protocol):
    """A compiled expression."""

    def search(self, text: str, pos: int = 0, /) -> Found | None:
        """The first match from `pos` on."""


class Term(NamedTuple):
    """A text or an expression. `text` is lower case for plain words; `pattern` is set for ``/re/``."""

    text: str
    pattern: Pattern | None = None

    def find(self, line: str, lowered: str, start: int = 0) -> tuple[int, int] | None:
        """The first match from `start` on, as (start, stop) within the line."""
        if self.pattern is not None:
            found = self.pattern.search(line, start)
            return found.span() if found is not None else None
        at = lowered.find(self.text, start)
        return (at, at + len(self.text)) if at >= 0 else None

    def __str__(self) -> str:
        return f"/{self.text}/" if self.pattern is not None else f"“{self.text}”"


class Word(NamedTuple):
    """One word of a filter: with a field, `field`, `sign` and `value` are set; otherwise `term` is searched."""

    text: str
    term: Term
    is_left_out: bool = False
    is_plain: bool = True  # neither quoted nor an expression
    field: str = ""
    sign: str = ""
    value: str = ""


def words_of(typed: str, fields: Collection[str]) -> Iterator[Word]:
    """The words of a filter, in order.

    Raises:
        BadQueryError: an invalid regular expression.
    """
    for match in _WORD.finditer(typed.strip()):
        minus, pattern, quoted, plain = match.groups()
        text = match.group().strip()
        if pattern is not None:
            yield Word(text, expression(pattern), bool(minus), is_plain=False)
        elif quoted is not None:
            yield Word(text, Term(quoted.lower()), bool(minus), is_plain=False)
        else:
            named = _FIELD.fullmatch(plain)
            is_field = named is not None and named[1].lower() in fields and not minus
            term = Term(plain.lower())
            if named is not None and is_field:
                yield Word(text, term, field=named[1].lower(), sign=named[2], value=named[3])
            else:
                yield Word(text, term, bool(minus))


def expression(pattern: str) -> Term:
    """Compile an expression that cannot hang on any line. ``^`` and ``$`` also match line ends within a chunk.

    Raises:
        BadQueryError: it is invalid.
    """
    from supervisor.text.patterns import compile_linear

    flags = "(?m)" if re.search(r"(?<!\\)[A-Z]", pattern) else "(?im)"
    try:
        return Term(pattern, cast("Pattern", compile_linear(flags + pattern)))
    except ValueError as error:
        raise BadQueryError(f"/{pattern}/ {error}") from error
