r"""Matches log lines against a query, one line or a whole chunk of a file at a time (pure).

The words of a filter are those of `views.filter_words`; further ``r0``, ``r0-3,7``, ``ragent`` for ranks;
``level:warn``, ``level:error``; ``stream:stdout``, ``stream:stderr``; ``node:1``, ``node:0-3,7`` of several
nodes. A search is one text or one ``/re/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from supervisor.text.decode import clean, strip_escapes
from supervisor.views.filter_words import BadQueryError, Term, Word, expression, words_of
from supervisor.views.format import ranges
from supervisor.views.logs.sources import AGENT, NOTABLE, Tone, tone_of

_RANKS = re.compile(r"r(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*|agent)")
_NUMBERS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
# Fields and their other common spellings; and those that only mean something in the list of runs.
_FIELDS = {
    name: name.removesuffix("s")
    for name in ["rank", "ranks", "node", "nodes", "level", "levels", "stream", "streams"]
}
_VALUES = frozenset(["step", "epoch", "loss", "val_loss", "lr", "grad_norm"])
_PLAIN = bytes([*b"\t\n", *range(32, 127)])
# A typed range names at most a few thousand ranks, more than any log here has.
MOST_RANKS = 4096
STREAMS = frozenset(["stdout", "stderr", "agent"])
LEVELS = {
    "warn": frozenset([Tone.WARN, Tone.BAD]),
    "warning": frozenset([Tone.WARN, Tone.BAD]),
    "error": frozenset([Tone.BAD]),
    "bad": frozenset([Tone.BAD]),
}


@dataclass(frozen=True)
class Query:
    """What lines must and must not contain, their writers and nodes (empty: any), and their severity (empty: any)."""

    include: tuple[Term, ...] = ()
    exclude: tuple[Term, ...] = ()
    who: frozenset[str] = frozenset()
    level: str = ""
    stream: str = ""
    nodes: frozenset[int] = frozenset()
    typed: str = field(default="", compare=False)

    @classmethod
    def parse(cls, typed: str) -> Query:
        """Parse a typed query.

        Raises:
            BadQueryError: an invalid regular expression, an unknown level, a comparison with a value.
        """
        query = cls(typed=" ".join(typed.split()))
        for word in words_of(typed, {*_FIELDS, *_VALUES}):
            query = query._with(word)
        return query

    def _with(self, word: Word) -> Query:
        """The query with one more word."""
        name = _FIELDS.get(word.field, word.field)
        if word.is_plain and not word.is_left_out and (named := _RANKS.fullmatch(word.text)):
            return replace(self, who=self.who | _ranks(named[1]))
        if word.field in _VALUES and word.sign in {"<", ">", "<=", ">=", "!="}:
            raise BadQueryError(
                f"{word.text}: a log is filtered by words, not by values: M draws {word.field}"
            )
        if name in {"rank", "node", "level", "stream"} and word.sign in {":", "="}:
            return self._with_field(name, word)
        if not word.term.text:
            return self
        if word.is_left_out:
            return replace(self, exclude=(*self.exclude, word.term))
        return replace(self, include=(*self.include, word.term))

    def _with_field(self, name: str, word: Word) -> Query:
        value = word.value.lower()
        match name:
            case "rank" if _NUMBERS.fullmatch(value) or value == AGENT:
                return replace(self, who=self.who | _ranks(value))
            case "rank":
                raise BadQueryError(
                    f'{word.text}: name ranks as r0 or r0-3,7; "{word.text}" in quotes is text'
                )
            case "node" if _NUMBERS.fullmatch(value):
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
        """The search: the words as one text, or ``/re/``.

        Raises:
            BadQueryError: an invalid regular expression.
        """
        pattern = re.fullmatch(r"/(.+)/", typed)
        term = expression(pattern.group(1)) if pattern else Term(typed.lower())
        return cls((term,) if typed else (), typed=typed)

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude or self.who or self.level or self.stream or self.nodes)

    def __str__(self) -> str:
        numbers = tuple(int(name) for name in self.who if name.isdigit())
        parts = [f"node {ranges(tuple(self.nodes))}"] if self.nodes else []
        parts += [f"rank {ranges(numbers)}"] if numbers else []
        parts += sorted(name for name in self.who if not name.isdigit())
        parts += (
            [f"{self.level} and worse" if self.level.startswith("warn") else "errors"] if self.level else []
        )
        parts += [self.stream] if self.stream else []
        parts += [str(term) for term in self.include]
        parts += [f"not {term}" for term in self.exclude]
        return " · ".join(parts)

    def of(self, who: frozenset[str]) -> Query:
        """The same query for these ranks."""
        return replace(self, who=who, typed=self._typed("rank", *_ranks_typed(who)))

    def on(self, stream: str) -> Query:
        """The same query for this stream ("": all)."""
        typed = self._typed("stream", *([f"stream:{stream}"] if stream else []))
        return replace(self, stream=stream, typed=typed)

    def at(self, *nodes: int) -> Query:
        """The same query for these nodes (none: all)."""
        typed = self._typed("node", *([f"node:{ranges(nodes)}"] if nodes else []))
        return replace(self, nodes=frozenset(nodes), typed=typed)

    def _typed(self, name: str, *words: str) -> str:
        """The typed text with other words in place of those of a field."""
        kept = [
            word.text
            for word in words_of(self.typed, _FIELDS)
            if _FIELDS.get(word.field) != name
            and not (name == "rank" and word.is_plain and _RANKS.fullmatch(word.text))
        ]
        return " ".join([*words, *kept])

    def __and__(self, other: Query) -> Query:
        return Query(
            self.include + other.include,
            self.exclude + other.exclude,
            (self.who & other.who or frozenset(["nobody"]))
            if self.who and other.who
            else self.who | other.who,
            self.level or other.level,
            self.stream or other.stream,
            (self.nodes & other.nodes or frozenset([-1]))
            if self.nodes and other.nodes
            else self.nodes | other.nodes,
        )

    def accepts(self, line: str) -> bool:
        """Whether a line's text matches; ignores the writer."""
        lowered = line.lower()
        return (
            all(term.find(line, lowered) for term in self.include)
            and not any(term.find(line, lowered) for term in self.exclude)
            and (not self.level or tone_of(line) in LEVELS[self.level])
        )

    def is_by(self, *who: str) -> bool:
        """Whether any of a line's writers matches."""
        return not self.who or not self.who.isdisjoint(who)

    @property
    def reads_text(self) -> bool:
        """Whether the query depends on more than the writer."""
        return bool(self.include or self.exclude or self.level)

    def offsets_in(self, data: bytes) -> Iterator[int]:
        """The starts of matching lines within `data`, which contains whole lines; see `accepts`."""
        text = _cleaned(data)
        lowered = text.lower()
        if any(term.pattern is None and term.text not in lowered for term in self.include):
            return  # as in nearly every chunk of a large log
        if self.level and NOTABLE.search(text) is None:
            return
        at = 0
        for raw, line in zip(data.split(b"\n"), text.split("\n"), strict=True):
            if at < len(data) and self.accepts(line):
                yield at
            at += len(raw) + 1


def _cleaned(data: bytes) -> str:
    """All lines of `data` as `clean` renders them, uncut; with as many newlines as before."""
    data = data.replace(b"\r\n", b"\n")
    # Most logs that are not plain text contain only the blocks of a progress bar, which stay.
    unusual = data.translate(None, _PLAIN).decode("utf-8", "replace")
    if "\r" not in unusual and strip_escapes(unusual) == unusual:
        return data.decode("utf-8", "replace")
    return "\n".join(clean(raw, cap_bytes=len(raw)) for raw in data.split(b"\n"))


def _ranks(named: str) -> set[str]:
    who: set[str] = set()
    for part in named.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            who.update(
                str(n) for n in range(int(first), min(int(last or first), int(first) + MOST_RANKS) + 1)
            )
        else:
            who.add(first)
    return who


def _ranks_typed(who: frozenset[str]) -> list[str]:
    numbers = tuple(int(name) for name in who if name.isdigit())
    return [*([f"r{ranges(numbers)}"] if numbers else []), *(f"r{x}" for x in sorted(who) if not x.isdigit())]
