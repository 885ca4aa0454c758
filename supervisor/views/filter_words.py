r"""What a person types as a filter, word by word: the same language in the logs and in the list of runs (pure).

``error`` (any case), ``"two words"``, ``/re/`` (any case unless it holds a capital), each with ``-`` before it to leave out what
holds it; ``field:value``, ``field=value`` and the comparisons ``< > <= >= !=``, for the fields that the caller names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol, cast

_WORD = re.compile(r'(-?)(?:/((?:\\.|[^/\\])+)/(?=\s|$)|"([^"]*)"|(\S+))\s*')
_FIELD = re.compile(r"([a-z_]+)(<=|>=|!=|[:=<>])(.*)", re.IGNORECASE)


class BadQueryError(ValueError):
    """What was typed is not a query; the message is one line."""


class Found(Protocol):
    """What an expression found."""

    def span(self) -> tuple[int, int]:
        """Where it begins and ends."""


class Pattern(Protocol):
    """A compiled expression."""

    def search(self, text: str, pos: int = 0, /) -> Found | None:
        """The first match from `pos` on."""


class Term(NamedTuple):
    """A text or an expression. `text` is lower case for plain words; `pattern` is set for ``/re/``."""

    text: str
    pattern: Pattern | None = None

    def find(self, line: str, lowered: str, start: int = 0) -> tuple[int, int] | None:
        """The first place from `start` on, as (start, stop) within the line."""
        if self.pattern is not None:
            found = self.pattern.search(line, start)
            return found.span() if found is not None else None
        at = lowered.find(self.text, start)
        return (at, at + len(self.text)) if at >= 0 else None

    def __str__(self) -> str:
        return f"/{self.text}/" if self.pattern is not None else f"“{self.text}”"


class Word(NamedTuple):
    """One word of a filter. `field`, `sign` and `value` are set where it names a field; else `term` is looked for."""

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
        BadQueryError: a regular expression that is none.
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
    """An expression that no line can make hang. ``^`` and ``$`` are a line's ends within a chunk of lines too.

    Raises:
        BadQueryError: it is none.
    """
    from supervisor.text.patterns import compile_linear

    flags = "(?m)" if re.search(r"(?<!\\)[A-Z]", pattern) else "(?im)"
    try:
        return Term(pattern, cast("Pattern", compile_linear(flags + pattern)))
    except ValueError as error:
        raise BadQueryError(f"/{pattern}/ {error}") from error
