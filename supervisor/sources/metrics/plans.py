"""What was learnt of a line's shape: where its values stand, so that the next such line need not be parsed.

The shape is the line without its digits. Lines of one shape have the same blanks, so a value stands in the same
piece between blanks, behind the same number of characters. Where that is not enough (two numbers in one piece)
more characters are made blank, and where that does not help (a value that holds a blank) a regular expression is
made of the line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from supervisor.sources.metrics.bars import find_bar
from supervisor.sources.metrics.names import STEP, TOTAL_STEPS
from supervisor.sources.metrics.readings import RANK, MetricSample, Parsed, Reading
from supervisor.sources.metrics.tokens import MASKED, mask, tokens
from supervisor.sources.metrics.values import Conversion, How, convert

_DIGITS = re.compile(r"\d+")
_FIELD, _OTHER, _RANK, _PAIR = range(4)
# What is made blank so that each value has a piece of its own: as little as will do, each costs 0.1 µs.
_SEPARATORS = ("", "/", "=", "/=", "/<=", "/<=[(,:")


# Reads a line of one shape. None: it differs in what must be the same, or holds no number after all.
Plan = Callable[[str], MetricSample | None]
_Number = Callable[[str], float]


class _Span(NamedTuple):
    """Where one value stands in the line, and what it is."""

    begin: int
    end: int
    name: str
    target: int
    number: _Number


class _Cut(NamedTuple):
    """The same by pieces: which piece, and the slice of it."""

    piece: int
    part: slice
    name: str
    target: int
    number: _Number


def finished(
    values: dict[str, float], other: dict[str, float], rank: int | None, pair: tuple[float, float] | None
) -> MetricSample | None:
    """The sample. A pair's total counts when the pair is the named counter, or one off it."""
    if pair is not None and STEP in values and abs(pair[0] - values[STEP]) <= 1:
        values[TOTAL_STEPS] = pair[1]
    return MetricSample(values, other, rank) if values or other else None


def _plan_by_regex(regex: re.Pattern[str], spans: list[_Span]) -> Plan:
    """For lines whose values cannot be told apart by blanks and the like."""

    def read(line: str) -> MetricSample | None:
        match = regex.fullmatch(line)
        if match is None:
            return None
        held: tuple[dict[str, float], ...] = tuple({} for _ in range(4))
        try:
            for span, text in zip(spans, match.groups(), strict=True):
                held[span.target][span.name] = span.number(text)
        except ValueError:
            return None
        rank, pair = held[_RANK].get(RANK), held[_PAIR]
        return finished(
            held[_FIELD],
            held[_OTHER],
            int(rank) if rank is not None else None,
            (pair[STEP], pair[TOTAL_STEPS]) if len(pair) == 2 else None,
        )

    return read


def _plan_by_pieces(separators: str, checks: list[tuple[int, str]], cuts: list[_Cut]) -> Plan:
    """For most lines: cut at blanks (and what is made blank), then slice."""
    fields, others, ranks, pairs = (
        [(cut.name, cut.piece, cut.part, cut.number) for cut in cuts if cut.target == target]
        for target in (_FIELD, _OTHER, _RANK, _PAIR)
    )
    new = tuple.__new__  # a third of the time that the class's own constructor takes

    def read_plain(line: str) -> MetricSample | None:
        for separator in separators:
            line = line.replace(separator, " ")
        pieces = line.split(" ")
        try:
            values = {name: number(pieces[piece][part]) for name, piece, part, number in fields}
        except ValueError:
            return finished(_what_there_is(fields, pieces), {}, None, None)
        return new(MetricSample, (values, {}, None))

    def read(line: str) -> MetricSample | None:
        for separator in separators:
            line = line.replace(separator, " ")
        pieces = line.split(" ")
        for piece, text in checks:
            if pieces[piece] != text:
                return None
        rank = pair = None
        try:
            for _, piece, part, number in ranks:
                rank = int(number(pieces[piece][part]))
            values = {name: number(pieces[piece][part]) for name, piece, part, number in fields}
            other = {name: number(pieces[piece][part]) for name, piece, part, number in others}
            if pairs:
                mine, total = (number(pieces[piece][part]) for _, piece, part, number in pairs)
                pair = (mine, total)
        except ValueError:
            return finished(_what_there_is(fields, pieces), _what_there_is(others, pieces), rank, None)
        return finished(values, other, rank, pair)

    return read_plain if fields and not (checks or others or ranks or pairs) else read


_Places = list[tuple[str, int, slice, _Number]]


def _what_there_is(places: _Places, pieces: list[str]) -> dict[str, float]:
    """The values that are numbers, where not all are (a step of 1.5, a rate of 0)."""
    values: dict[str, float] = {}
    for name, piece, part, number in places:
        with contextlib.suppress(ValueError):
            values[name] = number(pieces[piece][part])
    return values


def make_plan(
    line: str, prefix: int, parsed: Parsed, rank_at: tuple[int, int] | None, *, is_row: bool
) -> Plan | None:
    """A plan out of what the grammar found in `line`, whose launcher's prefix is `prefix` characters long.

    `rank_at`: where in it the rank stands. None when the values cannot be told by their places (the same place gives two of them).
    """
    spans = sorted(_spans(line, prefix, parsed, rank_at), key=lambda span: span.begin)
    if any(one.end > two.begin for one, two in pairwise(spans)):
        return None
    free = _free(line, prefix, is_row=is_row)
    for separators in _SEPARATORS:
        found = _cuts(line, separators, spans, free)
        if found is not None:
            return _plan_by_pieces(separators, *found)
    return _plan_by_regex(_regex(line, spans, free), spans)


def _spans(line: str, prefix: int, parsed: Parsed, rank_at: tuple[int, int] | None) -> list[_Span]:
    found: list[_Span] = []
    for reading in parsed.readings:
        target = _RANK if reading.field == RANK else _FIELD if reading.field else _OTHER
        found.append(_span(line, prefix, reading, reading.field or reading.name, target))
    if parsed.pair is not None:
        taken = {(span.begin, span.end) for span in found}
        for reading, name in zip(parsed.pair, (STEP, TOTAL_STEPS), strict=True):
            if (prefix + reading.start, prefix + reading.end) not in taken:
                found.append(_span(line, prefix, reading, name, _PAIR))
    if rank_at is not None:
        found = [span for span in found if span.target != _RANK]
        found.append(_Span(*rank_at, RANK, _RANK, int))
    return found


def _span(line: str, prefix: int, reading: Reading, name: str, target: int) -> _Span:
    begin, end = prefix + reading.start, prefix + reading.end
    return _Span(begin, end, name, target, _number(reading.conversion, line[begin:end]))


def _number(conversion: Conversion, text: str) -> _Number:
    """What `convert` does, made quick for texts of this shape; ValueError where `convert` has no answer."""
    how, factor = conversion
    plain = "," not in text and text[-1:] != "."
    if how is How.WHOLE and factor == 1.0 and text.isdigit():
        return int
    if how is How.NUMBER and plain:
        return float if factor == 1.0 else partial(_scaled, factor)
    if how is How.INVERSE and plain:
        return partial(_inverse, factor)
    if how is How.DURATION and text.replace(":", "").isdigit() and text.count(":") in {1, 2}:
        return _clock
    return partial(_converted, conversion)


def _scaled(factor: float, text: str) -> float:
    return float(text) * factor


def _inverse(factor: float, text: str) -> float:
    number = float(text)
    if number <= 0:
        raise ValueError(text)
    return factor / number


def _clock(text: str) -> float:
    parts = text.split(":")
    if len(parts) == 2:
        return int(parts[0]) * 60.0 + int(parts[1])
    return int(parts[0]) * 3600.0 + int(parts[1]) * 60 + int(parts[2])


def _converted(conversion: Conversion, text: str) -> float:
    value = convert(conversion, text)
    if value is None:
        raise ValueError(text)
    return value


def _free(line: str, prefix: int, *, is_row: bool) -> bytearray:
    """One byte a character: 1 where digits may be others in the next line, 0 where they belong to a name."""
    if is_row:
        return bytearray(b"\1" * len(line))
    free = bytearray(len(line))
    free[:prefix] = b"\1" * prefix
    masked = mask(line[prefix:])
    bar = find_bar(masked)
    if bar is not None:
        masked = bar.rest
    for place, character in enumerate(masked):
        if character == MASKED:
            free[prefix + place] = 1
    for token in tokens(masked):
        begin, end = prefix + token.start, prefix + token.stop
        free[begin:end] = b"\1" * (end - begin)
    return free


def _cuts(
    line: str, separators: str, spans: list[_Span], free: bytearray
) -> tuple[list[tuple[int, str]], list[_Cut]] | None:
    """Pieces that must be the same, and where the values are; None when two numbers share a piece."""
    for separator in separators:
        line = line.replace(separator, " ")
    pieces = line.split(" ")
    starts = [0]
    for piece in pieces[:-1]:
        starts.append(starts[-1] + len(piece) + 1)
    checks = [
        (place, piece)
        for place, (start, piece) in enumerate(zip(starts, pieces, strict=True))
        if any(not free[start + run.start()] for run in _DIGITS.finditer(piece))
    ]
    named = {place for place, _ in checks}
    cuts = []
    for begin, end, name, target, number in spans:
        place = line.count(" ", 0, begin)
        start, piece = starts[place], pieces[place]
        before, after = piece[: begin - start], piece[end - start :]
        if end > start + len(piece) or place in named or _DIGITS.search(before) or _DIGITS.search(after):
            return None
        cuts.append(_Cut(place, slice(len(before), -len(after) or None), name, target, number))
    return checks, cuts


def _regex(line: str, spans: list[_Span], free: bytearray) -> re.Pattern[str]:
    parts: list[str] = []
    place = 0
    for begin, end, *_ in spans:
        parts.append(_literal(line, place, begin, free))
        parts.append("(" + _DIGITS.sub("0", re.escape(line[begin:end])).replace("0", r"\d+") + ")")
        place = end
    parts.append(_literal(line, place, len(line), free))
    return re.compile("".join(parts))


def _literal(line: str, begin: int, end: int, free: bytearray) -> str:
    parts: list[str] = []
    for run in re.finditer(r"\d+|\D+", line[begin:end]):
        text = run.group()
        parts.append(r"\d+" if text.isdigit() and free[begin + run.start()] else re.escape(text))
    return "".join(parts)
