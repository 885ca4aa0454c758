r"""The one query language of all log views: what a person typed, tried on one line or on a whole chunk of a file (pure).

The words of a filter: ``error`` (any case), ``"two words"``, ``/re/`` (any case unless it holds a capital), each
with ``-`` before it to leave such lines out; ``r0``, ``r0-3,7``, ``ragent`` for ranks; ``level:warn``,
``level:error``; ``stream:stdout``, ``stream:stderr``; ``node:1``, ``node:0-3,7`` of several nodes. What is searched is one text, or one ``/re/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol, cast

from supervisor.text.decode import clean, strip_escapes
from supervisor.views.format import ranges
from supervisor.views.logs.sources import NOTABLE, Tone, tone_of

_WORD = re.compile(r'(-?)(?:/((?:\\.|[^/\\])+)/(?=\s|$)|"([^"]*)"|(\S+))\s*')
_RANKS = re.compile(r"r(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*|agent)")
_LEVEL = re.compile(r"level:(\w+)")
_STREAM = re.compile(r"stream:(\w+)")
_NODES = re.compile(r"node:(\S*)")
# What a person writes for one of these, with what is meant. In quotes it is text.
_MEANT = re.compile(r"(ranks?|nodes?|levels?|streams?)[:=](\S*)", re.IGNORECASE)
_NUMBERS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
# As in the list of runs, where it has a meaning.
_COMPARED = re.compile(r"(step|epoch|loss|val_loss|lr|grad_norm)(<=|>=|!=|[<>])(.+)")
# What a capture or a look-around sees beyond its own text differs between a line and a chunk of lines.
_CONTEXTUAL = re.compile(r"\(\?|\\[AZ]")
# All control bytes but tab and newline: a chunk with any of these is cleaned before it is searched.
_CONTROLS = bytes(b for b in range(32) if b not in b"\t\n") + b"\x7f"
_PLAIN = bytes([*b"\t\n", *range(32, 127)])
# A typed range names at most some thousand ranks: more than any log here has.
MOST_RANKS = 4096
STREAMS = frozenset(["stdout", "stderr", "agent"])
LEVELS = {
    "warn": frozenset([Tone.WARN, Tone.BAD]),
    "warning": frozenset([Tone.WARN, Tone.BAD]),
    "error": frozenset([Tone.BAD]),
    "bad": frozenset([Tone.BAD]),
}


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
    """One word of a query. `text` is lower case for plain words; `pattern` is set for ``/re/``."""

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


@dataclass(frozen=True)
class Query:
    """What lines must hold, must not hold, who wrote them on which node (empty: anybody, any) and how bad they are (empty: any)."""

    include: tuple[Term, ...] = ()
    exclude: tuple[Term, ...] = ()
    who: frozenset[str] = frozenset()
    level: str = ""
    stream: str = ""
    nodes: frozenset[int] = frozenset()
    typed: str = field(default="", compare=False)

    @classmethod
    def parse(cls, typed: str) -> Query:
        """Read what a person typed.

        Raises:
            BadQueryError: a regular expression that is none, an unknown level, a comparison with a value.
        """
        include: list[Term] = []
        exclude: list[Term] = []
        who: set[str] = set()
        nodes: set[int] = set()
        level = stream = ""
        for match in _WORD.finditer(typed.strip()):
            minus, pattern, quoted, word = match.groups()
            if pattern is not None:
                term = _regex(pattern)
            elif quoted is None and (named := _RANKS.fullmatch(word)) and not minus:
                who |= _ranks(named.group(1))
                continue
            elif quoted is None and (named := _LEVEL.fullmatch(word)) and not minus:
                level = named.group(1).lower()
                if level not in LEVELS:
                    raise BadQueryError(f"level:{level}: there are level:warn and level:error")
                continue
            elif quoted is None and (named := _STREAM.fullmatch(word)) and not minus:
                stream = named.group(1).lower()
                if stream not in STREAMS:
                    raise BadQueryError(f"stream:{stream}: there are stream:stdout and stream:stderr")
                continue
            elif quoted is None and (named := _NODES.fullmatch(word)) and not minus:
                if _NUMBERS.fullmatch(named.group(1)) is None:
                    raise BadQueryError(f"{word}: name nodes by their numbers: node:1 or node:0-3,7")
                nodes |= {int(number) for number in _ranks(named.group(1))}
                continue
            elif quoted is None and _MEANT.fullmatch(word):
                raise BadQueryError(_meant(word))
            elif quoted is None and (named := _COMPARED.fullmatch(word)):
                raise BadQueryError(_no_values(*named.groups()))
            else:
                term = Term((word if quoted is None else quoted).lower())
            if term.text:
                (exclude if minus else include).append(term)
        return cls(
            tuple(include),
            tuple(exclude),
            frozenset(who),
            level,
            stream,
            frozenset(nodes),
            " ".join(typed.split()),
        )

    @classmethod
    def search(cls, typed: str) -> Query:
        """What is searched: the words as one text, or ``/re/``.

        Raises:
            BadQueryError: a regular expression that is none.
        """
        pattern = re.fullmatch(r"/(.+)/", typed)
        term = _regex(pattern.group(1)) if pattern else Term(typed.lower())
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
        """The same of these ranks."""
        return replace(self, who=who, typed=_typed(self.typed, _RANKS, _ranks_typed(who)))

    def on(self, stream: str) -> Query:
        """The same of this stream ("": of all)."""
        return replace(
            self, stream=stream, typed=_typed(self.typed, _STREAM, f"stream:{stream}" if stream else "")
        )

    def at(self, *nodes: int) -> Query:
        """The same of these nodes (none: of all)."""
        word = f"node:{ranges(nodes)}" if nodes else ""
        return replace(self, nodes=frozenset(nodes), typed=_typed(self.typed, _NODES, word))

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
        """Whether a line's text is meant; who wrote it is not looked at."""
        lowered = line.lower()
        return (
            all(term.find(line, lowered) for term in self.include)
            and not any(term.find(line, lowered) for term in self.exclude)
            and (not self.level or tone_of(line) in LEVELS[self.level])
        )

    def is_by(self, *who: str) -> bool:
        """Whether one of those who wrote a line is meant."""
        return not self.who or not self.who.isdisjoint(who)

    @property
    def reads_text(self) -> bool:
        """Whether more than the writer matters."""
        return bool(self.include or self.exclude or self.level)

    @cached_property
    def _driver(self) -> Term | None:
        """What is looked for first in a chunk: the words of a level, else the longest plain word, else a simple expression."""
        if self.level:
            return Term(NOTABLE.pattern, NOTABLE)
        plain = [term for term in self.include if term.pattern is None]
        if plain:
            return max(plain, key=lambda term: len(term.text))
        return next((term for term in self.include if not _CONTEXTUAL.search(term.text)), None)

    def offsets_in(self, data: bytes) -> Iterator[int]:
        """Where the lines that are meant begin within `data`, which holds whole lines.

        The same lines as `accepts(clean(line))` would find, uncut, many times as fast where few match.
        """
        # Text without anything that `clean` would take out can be searched as it stands, offsets and all.
        plain = data.isascii() and len(data.translate(None, _CONTROLS)) == len(data)
        text = data.decode() if plain else _cleaned(data)
        lowered = text.lower()
        driver = self._driver
        at = place = 0  # in text; `place` follows it in data
        if len(lowered) != len(text):
            driver = None
        while (at < len(text)) if plain else (place < len(data)):
            if driver is not None:
                found = driver.find(text, lowered, at)
                if found is None:
                    return
                start = text.rfind("\n", at, found[0]) + 1 or at
                if driver.pattern not in {None, NOTABLE}:
                    driver = None  # RE2 takes in all of the text at each search: from here line by line
            else:
                start = at
            stop = text.find("\n", start)
            stop = len(text) if stop < 0 else stop
            if not plain:
                for _ in range(text.count("\n", at, start)):
                    place = data.index(b"\n", place) + 1
            if self.accepts(text[start:stop]):
                yield start if plain else place
            if not plain:
                newline = data.find(b"\n", place)
                place = newline + 1 if newline >= 0 else len(data)
            at = stop + 1


def _cleaned(data: bytes) -> str:
    """All lines of `data` as `clean` gives each, uncut; as many newlines as before."""
    data = data.replace(b"\r\n", b"\n")
    # Most such logs hold but the blocks of a progress bar, which stay.
    unusual = data.translate(None, _PLAIN).decode("utf-8", "replace")
    if "\r" not in unusual and strip_escapes(unusual) == unusual:
        return data.decode("utf-8", "replace")
    return "\n".join(clean(raw, cap_bytes=len(raw)) for raw in data.split(b"\n"))


def _meant(word: str) -> str:
    """How what a person most likely means is written."""
    match word[0].lower():
        case "r":
            return f'{word}: name ranks as r0 or r0-3,7; "{word}" in quotes is text'
        case "n":
            return f'{word}: name nodes as node:1 or node:0-3,7; "{word}" in quotes is text'
        case "l":
            return f'{word}: name a level as level:warn or level:error; "{word}" in quotes is text'
        case _:
            return f'{word}: name a stream as stream:stdout or stream:stderr; "{word}" in quotes is text'


def _no_values(name: str, sign: str, value: str) -> str:
    try:
        float(value)
    except ValueError:
        return (
            f"{name}{sign}{value}: {value} is no number, and a log is filtered by words: write {name} alone"
        )
    return f"{name}{sign}{value}: a log is filtered by words, not by values: M draws {name}"


def _regex(pattern: str) -> Term:
    """An expression that no line can make hang. ``^`` and ``$`` are a line's ends within a chunk of lines too."""
    from supervisor.text.patterns import compile_linear

    flags = "(?m)" if re.search(r"(?<!\\)[A-Z]", pattern) else "(?im)"
    try:
        return Term(pattern, cast("Pattern", compile_linear(flags + pattern)))
    except ValueError as error:
        raise BadQueryError(f"/{pattern}/ {error}") from error


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


def _typed(typed: str, pattern: re.Pattern[str], word: str) -> str:
    """What was typed, with other words in the place of those that the pattern takes."""
    kept = [
        match.group().strip()
        for match in _WORD.finditer(typed)
        if not pattern.fullmatch(match.group().strip())
    ]
    return " ".join([word, *kept] if word else kept)


def _ranks_typed(who: frozenset[str]) -> str:
    numbers = tuple(int(name) for name in who if name.isdigit())
    return " ".join(
        [*([f"r{ranges(numbers)}"] if numbers else []), *(f"r{x}" for x in sorted(who) if not x.isdigit())]
    )
