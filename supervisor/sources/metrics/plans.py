"""What was learnt of a line's shape: where its values stand, so that the next such line need not be parsed.

The shape is the line without its digits. Lines of one shape have the same blanks, so a value stands in the same
piece between blanks, behind the same number of characters. Where that is not enough (two numbers in one piece)
more characters are made blank, and where that does not help (a value that holds a blank) a regular expression is
made of the line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from supervisor.sources.metrics.layout import (
    FIELD,
    OTHER,
    PAIR,
    RANKS,
    Layout,
    Number,
    Span,
    finished,
    number_of,
)
from supervisor.sources.metrics.names import STEP, TOTAL_STEPS
from supervisor.sources.metrics.readings import RANK
from supervisor.sources.metrics.samples import MetricSample

_DIGITS = re.compile(r"\d+")
# What is made blank so that each value has a piece of its own: as little as will do, each costs 0.1 µs.
_SEPARATORS = ("", "/", "=", "/=", "/<=", "/<=[(,:")


class Plan(Protocol):
    """How the lines of one shape are read."""

    def read(self, line: str) -> MetricSample | None:
        """The line's sample; None when it differs in what must be the same, or holds no number after all."""

    def layout(self, line: str) -> Layout | None:
        """Where the values stand in this line, whose digits may be more or fewer; None when this plan cannot tell."""


class _Cut(NamedTuple):
    """A value by pieces: which piece, the slice of it, and what it is."""

    piece: int
    part: slice
    span: Span
    number: Number


def make_plan(line: str, spans: tuple[Span, ...], free: bytearray) -> Plan:
    """A plan out of what the grammar found in `line`, and which of its digits may change."""
    held = [begin for begin, _ in fixed_digits(line, free)]
    for separators in _SEPARATORS:
        found = _cuts(line, separators, spans, held)
        if found is not None:
            return _ByPieces(separators, *found)
    return _ByRegex(_regex(line, spans, free), line, spans)


def fixed_digits(line: str, free: bytearray) -> tuple[tuple[int, int], ...]:
    """The runs of digits that must be the same in the next line."""
    return tuple(run.span() for run in _DIGITS.finditer(line) if not free[run.start()])


class _ByRegex:
    """For lines whose values cannot be told apart by blanks and the like."""

    def __init__(self, regex: re.Pattern[str], line: str, spans: tuple[Span, ...]) -> None:
        self._match = regex.fullmatch
        self._spans = spans
        self._numbers = [number_of(span.conversion, line[span.begin : span.end]) for span in spans]

    def read(self, line: str) -> MetricSample | None:
        match = self._match(line)
        if match is None:
            return None
        held: tuple[dict[str, float], ...] = ({}, {}, {}, {})
        try:
            for span, number, text in zip(self._spans, self._numbers, match.groups(), strict=True):
                held[span.target][span.name] = number(text)
        except ValueError:
            return None
        rank, pair = held[RANKS].get(RANK), held[PAIR]
        return finished(
            held[FIELD],
            held[OTHER],
            int(rank) if rank is not None else None,
            (pair[STEP], pair[TOTAL_STEPS]) if len(pair) == 2 else None,
        )

    def layout(self, line: str) -> Layout | None:  # noqa: ARG002 - the digits of names are not kept
        return None


class _ByPieces:
    """For most lines: cut at blanks (and what is made blank), then slice."""

    def __init__(self, separators: str, checks: list[tuple[int, str]], cuts: list[_Cut]) -> None:
        self._separators = separators
        self._checks = checks
        self._cuts = cuts
        self._fields, self._others, self._ranks, self._pairs = (
            [(cut.span.name, cut.piece, cut.part, cut.number) for cut in cuts if cut.span.target == target]
            for target in (FIELD, OTHER, RANKS, PAIR)
        )

    def _pieces(self, line: str) -> list[str]:
        for separator in self._separators:
            line = line.replace(separator, " ")
        return line.split(" ")

    def read(self, line: str) -> MetricSample | None:
        pieces = self._pieces(line)
        for piece, text in self._checks:
            if pieces[piece] != text:
                return None
        rank = pair = None
        try:
            for _, piece, part, number in self._ranks:
                rank = int(number(pieces[piece][part]))
            values = {name: number(pieces[piece][part]) for name, piece, part, number in self._fields}
            other = {name: number(pieces[piece][part]) for name, piece, part, number in self._others}
            if self._pairs:
                mine, total = (number(pieces[piece][part]) for _, piece, part, number in self._pairs)
                pair = (mine, total)
        except ValueError:
            return finished(
                _what_there_is(self._fields, pieces), _what_there_is(self._others, pieces), rank, None
            )
        return finished(values, other, rank, pair)

    def layout(self, line: str) -> Layout | None:
        pieces = self._pieces(line)
        starts = _starts(pieces)
        spans = []
        for piece, part, span, _ in self._cuts:
            begin, end, _ = part.indices(len(pieces[piece]))
            spans.append(span._replace(begin=starts[piece] + begin, end=starts[piece] + end))
        fixed: list[tuple[int, int]] = []
        for piece, text in self._checks:
            fixed += [
                (starts[piece] + run.start(), starts[piece] + run.end()) for run in _DIGITS.finditer(text)
            ]
        return Layout(tuple(spans), tuple(fixed))


_Places = list[tuple[str, int, slice, Number]]


def _what_there_is(places: _Places, pieces: list[str]) -> dict[str, float]:
    """The values that are numbers, where not all are (a step of 1.5, a rate of 0)."""
    values: dict[str, float] = {}
    for name, piece, part, number in places:
        with contextlib.suppress(ValueError):
            values[name] = number(pieces[piece][part])
    return values


def _starts(pieces: list[str]) -> list[int]:
    starts = [0]
    for piece in pieces[:-1]:
        starts.append(starts[-1] + len(piece) + 1)
    return starts


def _cuts(
    line: str, separators: str, spans: Iterable[Span], held: Sequence[int]
) -> tuple[list[tuple[int, str]], list[_Cut]] | None:
    """Pieces that must be the same, as they hold digits at `held`, and where the values are; None when two numbers share one."""
    blank = line
    for separator in separators:
        blank = blank.replace(separator, " ")
    pieces = blank.split(" ")
    starts = _starts(pieces)
    checks = [
        (place, piece)
        for place, (start, piece) in enumerate(zip(starts, pieces, strict=True))
        if any(start <= begin < start + len(piece) for begin in held)
    ]
    named = {place for place, _ in checks}
    cuts = []
    for span in spans:
        place = blank.count(" ", 0, span.begin)
        start, piece = starts[place], pieces[place]
        before, after = piece[: span.begin - start], piece[span.end - start :]
        if span.end > start + len(piece) or place in named or _DIGITS.search(before) or _DIGITS.search(after):
            return None
        number = number_of(span.conversion, line[span.begin : span.end])
        cuts.append(_Cut(place, slice(len(before), -len(after) or None), span, number))
    return checks, cuts


def _regex(line: str, spans: Iterable[Span], free: bytearray) -> re.Pattern[str]:
    parts: list[str] = []
    place = 0
    for span in spans:
        parts.append(_literal(line, place, span.begin, free))
        parts.append(
            "(" + _DIGITS.sub("0", re.escape(line[span.begin : span.end])).replace("0", r"\d+") + ")"
        )
        place = span.end
    parts.append(_literal(line, place, len(line), free))
    return re.compile("".join(parts))


def _literal(line: str, begin: int, end: int, free: bytearray) -> str:
    parts: list[str] = []
    for run in re.finditer(r"\d+|\D+", line[begin:end]):
        text = run.group()
        parts.append(r"\d+" if text.isdigit() and free[begin + run.start()] else re.escape(text))
    return "".join(parts)
