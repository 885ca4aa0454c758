"""The query language shared by the log view and the run list: its terms, and how log lines match. Pure.

Terms are ``error`` (case-insensitive), ``"two words"`` and ``/re/`` (case-insensitive unless it has a capital),
with ``-`` in front to exclude matches, and ``field:value``, ``field=value`` and ``< > <= >= !=`` for the caller's
fields. Logs have ``r0``, ``r0-3,7`` and ``ragent`` for ranks; ``level:warn``, ``level:error``; ``stream:stdout``,
``stream:stderr``; ``node:1``, ``node:0-3,7``. A search is a single string or a single ``/re/``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.text.decode import clean, strip_escapes
from supervisor.views.format import ranges
from supervisor.views.logs.sources import AGENT, NOTABLE, Tone, tone_of

_WORD = re.compile(r'(-?)(?:/((?:\\.|[^/\\])+)/(?=\s|$)|"([^"]*)"|(\S+))\s*')
_FIELD = re.compile(r"([a-z_]+)(<=|>=|!=|[:=<>])(.*)", re.IGNORECASE)
_NUMBERS = r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*"
_RANKS = re.compile(rf"r({_NUMBERS}|agent)")
# The fields of a log, and the fields that only the list of runs can compare.
_FIELDS = {"rank", "ranks", "node", "nodes", "level", "levels", "stream", "streams"}
_VALUES = {"step", "epoch", "loss", "val_loss", "lr", "grad_norm"}
_PLAIN = bytes([*b"\t\n", *range(32, 127)])
# A typed range expands to at most a few thousand ranks, more than any log here has.
MOST_RANKS = 4096
STREAMS = frozenset(["stdout", "stderr", "agent"])
_WORSE = frozenset([Tone.WARN, Tone.BAD])
LEVELS = {"warn": _WORSE, "warning": _WORSE, "error": frozenset([Tone.BAD]), "bad": frozenset([Tone.BAD])}


class BadQueryError(ValueError):
    """The query is invalid. The message is a single line."""


# -- the words of a query ------------------------------------------------------------------------------


class Term(NamedTuple):
    """A string or regular expression to search for. Plain `text` is lowercase; `pattern` is set for ``/re/``."""

    text: str
    pattern: re.Pattern[str] | None = None

    def find(self, line: str, lowered: str, start: int = 0) -> tuple[int, int] | None:
        """Find the first match at or after `start` and return its (start, stop) span within the line."""
        if self.pattern is not None:
            found = self.pattern.search(line, start)
            return found.span() if found is not None else None
        at = lowered.find(self.text, start)
        return (at, at + len(self.text)) if at >= 0 else None

    def __str__(self) -> str:
        return f"/{self.text}/" if self.pattern is not None else f"“{self.text}”"


class Word(NamedTuple):
    """A single term of a filter. Either `field`, `sign` and `value` are set, or `term` is searched for."""

    text: str
    term: Term
    is_left_out: bool = False
    is_plain: bool = True  # neither quoted nor an expression
    field: str = ""
    sign: str = ""
    value: str = ""


def words_of(typed: str, fields: Collection[str]) -> Iterator[Word]:
    """Yield the terms of a filter, in order.

    Raises:
        BadQueryError: a regular expression is invalid.
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
            term = Term(plain.lower())
            if named is not None and named[1].lower() in fields and not minus:
                yield Word(text, term, field=named[1].lower(), sign=named[2], value=named[3])
            else:
                yield Word(text, term, bool(minus))


def expression(pattern: str) -> Term:
    """Compile a regular expression so that no line can make it hang. ``^`` and ``$`` match at every line boundary.

    Raises:
        BadQueryError: the expression is invalid.
    """
    from supervisor.text.patterns import compile_linear

    flags = "(?m)" if re.search(r"(?<!\\)[A-Z]", pattern) else "(?im)"
    try:
        return Term(pattern, compile_linear(flags + pattern))
    except ValueError as error:
        raise BadQueryError(f"/{pattern}/ {error}") from error


# -- a query of log lines ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """A query: terms that lines must or must not contain, writers, nodes, and severity. Empty fields match anything."""

    include: tuple[Term, ...] = ()
    exclude: tuple[Term, ...] = ()
    who: frozenset[str] = frozenset()
    level: str = ""
    stream: str = ""
    nodes: frozenset[int] = frozenset()
    typed: str = field(default="", compare=False)

    @classmethod
    def parse(cls, typed: str) -> Query:
        """Parse a query as typed by the user.

        Raises:
            BadQueryError: an expression is invalid, a level does not exist, or a metric is compared with a value.
        """
        query = cls(typed=" ".join(typed.split()))
        for word in words_of(typed, _FIELDS | _VALUES):
            query = query._with(word)
        return query

    def _with(self, word: Word) -> Query:
        """Return a copy of the query with another term added."""
        if word.field in _VALUES and word.sign in {"<", ">", "<=", ">=", "!="}:
            raise BadQueryError(
                f"{word.text}: a log is filtered by words, not by values: M draws {word.field}"
            )
        if word.field in _FIELDS and word.sign in {":", "="}:
            return self._with_field(word)
        if named := _rank_word(word):
            return replace(self, who=self.who | _ranks(named))
        if not word.term.text:
            return self
        if word.is_left_out:
            return replace(self, exclude=(*self.exclude, word.term))
        return replace(self, include=(*self.include, word.term))

    def _with_field(self, word: Word) -> Query:
        value = word.value.lower()
        is_numbers = re.fullmatch(_NUMBERS, value) is not None
        match word.field.removesuffix("s"):
            case "rank" if is_numbers or value == AGENT:
                return replace(self, who=self.who | _ranks(value))
            case "rank":
                raise BadQueryError(
                    f'{word.text}: name ranks as r0 or r0-3,7; "{word.text}" in quotes is text'
                )
            case "node" if is_numbers:
                return replace(self, nodes=self.nodes | {int(number) for number in _ranks(value)})
            case "node":
                raise BadQueryError(f"{word.text}: name nodes by their numbers: node:1 or node:0-3,7")
            case "level" if value not in LEVELS:
                raise BadQueryError(f"level:{value}: there are level:warn and level:error")
            case "level":
                return replace(self, level=value)
            case _ if value not in STREAMS:
                raise BadQueryError(f"stream:{value}: there are stream:stdout and stream:stderr")
            case _:
                return replace(self, stream=value)

    @classmethod
    def search(cls, typed: str) -> Query:
        """Return a search for the typed text as a whole, or for ``/re/``.

        Raises:
            BadQueryError: the regular expression is invalid.
        """
        pattern = re.fullmatch(r"/(.+)/", typed)
        term = expression(pattern.group(1)) if pattern else Term(typed.lower())
        return cls((term,) if typed else (), typed=typed)

    def __bool__(self) -> bool:
        return self != Query()

    def __str__(self) -> str:
        numbers = tuple(int(name) for name in self.who if name.isdigit())
        parts = [f"node {ranges(tuple(self.nodes))}"] if self.nodes else []
        parts += [f"rank {ranges(numbers)}"] if numbers else []
        parts += sorted(name for name in self.who if not name.isdigit())
        if self.level:
            parts.append("errors" if LEVELS[self.level] != _WORSE else f"{self.level} and worse")
        parts += [self.stream] if self.stream else []
        parts += [str(term) for term in self.include]
        parts += [f"not {term}" for term in self.exclude]
        return " · ".join(parts)

    def of(self, *who: str) -> Query:
        """Return a copy of the query limited to these ranks (all ranks if none are given)."""
        return replace(self, who=frozenset(who), typed=self._typed("rank", *(f"r{name}" for name in who)))

    def at(self, *nodes: int) -> Query:
        """Return a copy of the query limited to these nodes (all nodes if none are given)."""
        typed = self._typed("node", *([f"node:{ranges(nodes)}"] if nodes else []))
        return replace(self, nodes=frozenset(nodes), typed=typed)

    def _typed(self, name: str, *words: str) -> str:
        """Return the query's text with the terms for field `name` replaced."""
        kept = [
            word.text
            for word in words_of(self.typed, _FIELDS)
            if word.field.removesuffix("s") != name and not (name == "rank" and _rank_word(word))
        ]
        return " ".join([*words, *kept])

    def accepts(self, line: str) -> bool:
        """Check whether a line's text matches, whoever wrote it."""
        lowered = line.lower()
        return (
            all(term.find(line, lowered) for term in self.include)
            and not any(term.find(line, lowered) for term in self.exclude)
            and (not self.level or tone_of(line) in LEVELS[self.level])
        )

    def is_by(self, *who: str) -> bool:
        """Check whether any of the line's writers matches."""
        return not self.who or not self.who.isdisjoint(who)

    @property
    def reads_text(self) -> bool:
        """Whether the query depends on more than the writer."""
        return bool(self.include or self.exclude or self.level)

    def offsets_in(self, data: bytes) -> Iterator[int]:
        """Yield the start of each line in `data` that matches; see `accepts`. `data` must contain whole lines."""
        text = _cleaned(data)
        lowered = text.lower()
        if any(term.pattern is None and term.text not in lowered for term in self.include):
            return  # the usual case for a chunk of a large log
        if self.level and NOTABLE.search(text) is None:
            return
        at = 0
        for raw, line in zip(data.split(b"\n"), text.split("\n"), strict=True):
            if at < len(data) and self.accepts(line):
                yield at
            at += len(raw) + 1


def _cleaned(data: bytes) -> str:
    """Decode `data` as `clean` would, but without cutting lines and with the same number of newlines."""
    data = data.replace(b"\r\n", b"\n")
    # In most logs that are not plain text, the unusual characters are progress bar blocks, which stay.
    unusual = data.translate(None, _PLAIN).decode("utf-8", "replace")
    if "\r" not in unusual and strip_escapes(unusual) == unusual:
        return data.decode("utf-8", "replace")
    return "\n".join(clean(raw, cap_bytes=len(raw)) for raw in data.split(b"\n"))


def _rank_word(word: Word) -> str:
    """Return the ranks in a term such as ``r0-3,7``, or "" for any other term."""
    named = _RANKS.fullmatch(word.text) if word.is_plain and not word.is_left_out else None
    return named[1] if named is not None else ""


def _ranks(named: str) -> set[str]:
    who: set[str] = set()
    for part in named.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            stop = min(int(last or first), int(first) + MOST_RANKS) + 1
            who.update(str(number) for number in range(int(first), stop))
        else:
            who.add(first)
    return who
