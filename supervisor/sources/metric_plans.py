"""What was learnt of a line's shape: where its values stand, so that the next such line need not be parsed.

The shape is the line without its digits. Lines of one shape have the same blanks, so a value stands in the same
piece between blanks, behind the same number of characters. Where that is not enough (two numbers in one piece,
a value that holds blanks) a regular expression is made of the line instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from supervisor.sources.metric_bars import find_bar
from supervisor.sources.metric_readings import RANK, Parsed, Reading
from supervisor.sources.metric_tokens import MASKED, mask, tokens
from supervisor.sources.metric_values import PLAIN, WHOLE, Conversion, convert

_DIGITS = re.compile(r"\d+")
_FIELD, _OTHER, _RANK, _PAIR_STEP, _PAIR_TOTAL = range(5)


class Cut(NamedTuple):
    """Where one value stands, and what it is.

    `piece`: which piece between blanks; `side`: 0 all of it, 1 before its slash, 2 behind it; `begin`, `end`: slice of that.
    """

    piece: int
    side: int
    begin: int
    end: int | None
    name: str
    target: int
    number: Callable[[str], float | None]


class Values(NamedTuple):
    """The values that a plan takes out of a line."""

    fields: dict[str, float]
    other: dict[str, float]
    rank: int | None
    pair: tuple[float, float] | None


class Plan:
    """How to read lines of one shape."""

    __slots__ = ("_checks", "_cuts", "_fields", "_regex")

    def __init__(
        self,
        cuts: tuple[Cut, ...] | None,
        checks: tuple[tuple[int, str], ...],
        regex: re.Pattern[str] | None,
        fields: tuple[Cut, ...],
    ) -> None:
        self._cuts = cuts
        self._checks = checks
        self._regex = regex
        self._fields = fields

    def read(self, line: str) -> Values | None:
        """The values of a line of this shape; None when the line differs in what must be the same."""
        if self._cuts is None:
            return self._by_regex(line)
        pieces = line.split(" ")
        for place, text in self._checks:
            if pieces[place] != text:
                return None
        fields: dict[str, float] = {}
        other: dict[str, float] = {}
        rank = step = total = None
        try:
            for place, side, begin, end, name, target, number in self._cuts:
                piece = pieces[place]
                if side:
                    piece = piece.partition("/")[0 if side == 1 else 2]
                value = number(piece[begin:end])
                if value is None:
                    continue
                if target == _FIELD:
                    fields[name] = value
                elif target == _OTHER:
                    other[name] = value
                elif target == _RANK:
                    rank = int(value)
                elif target == _PAIR_STEP:
                    step = value
                else:
                    total = value
        except ValueError:
            return None
        return Values(fields, other, rank, (step, total) if step is not None and total is not None else None)

    def _by_regex(self, line: str) -> Values | None:
        assert self._regex is not None
        match = self._regex.fullmatch(line)
        if match is None:
            return None
        fields: dict[str, float] = {}
        other: dict[str, float] = {}
        rank = step = total = None
        try:
            for cut, text in zip(self._fields, match.groups(), strict=True):
                value = cut.number(text)
                if value is None:
                    continue
                if cut.target == _FIELD:
                    fields[cut.name] = value
                elif cut.target == _OTHER:
                    other[cut.name] = value
                elif cut.target == _RANK:
                    rank = int(value)
                elif cut.target == _PAIR_STEP:
                    step = value
                else:
                    total = value
        except ValueError:
            return None
        return Values(fields, other, rank, (step, total) if step is not None and total is not None else None)


def make_plan(
    line: str, prefix: int, parsed: Parsed, rank_at: tuple[int, int] | None, *, is_row: bool
) -> Plan | None:
    """A plan out of what the grammar found in `line`, whose launcher's prefix is `prefix` characters long.

    `rank_at`: where in it the rank stands. None when the values cannot be told by their places (the same place gives two of them).
    """
    spans = sorted(_spans(line, prefix, parsed, rank_at), key=lambda span: span[0])
    if any(one[1] > two[0] for one, two in pairwise(spans)):
        return None
    free = _free(line, prefix, is_row=is_row)
    cuts, checks = _cuts(line, spans, free)
    if cuts is not None:
        return Plan(cuts, checks, None, ())
    fields = tuple(Cut(0, 0, 0, None, name, target, number) for _, _, name, target, number in spans)
    return Plan(None, (), _regex(line, spans, free), fields)


_Span = tuple[int, int, str, int, Callable[[str], float | None]]


def _spans(line: str, prefix: int, parsed: Parsed, rank_at: tuple[int, int] | None) -> list[_Span]:
    found: list[_Span] = []
    for reading in parsed.readings:
        target = _RANK if reading.field == RANK else _FIELD if reading.field else _OTHER
        found.append(_span(line, prefix, reading, reading.field or reading.name, target))
    if parsed.pair is not None:
        taken = {(span[0], span[1]) for span in found}
        for reading, target in zip(parsed.pair, (_PAIR_STEP, _PAIR_TOTAL), strict=True):
            if (prefix + reading.start, prefix + reading.end) not in taken:
                found.append(_span(line, prefix, reading, "", target))
    if rank_at is not None:
        found = [span for span in found if span[3] != _RANK]
        found.append((*rank_at, RANK, _RANK, int))
    return found


def _span(line: str, prefix: int, reading: Reading, name: str, target: int) -> _Span:
    begin, end = prefix + reading.start, prefix + reading.end
    return begin, end, name, target, _number(reading.conversion, line[begin:end])


def _number(conversion: Conversion, text: str) -> Callable[[str], float | None]:
    """The quickest function that does what `convert` does for texts of this shape."""
    if conversion == WHOLE and text.isdigit():
        return int
    if conversion == PLAIN and "," not in text and text[-1:] != ".":
        return float
    return partial(convert, conversion)


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
    line: str, spans: list[_Span], free: bytearray
) -> tuple[tuple[Cut, ...] | None, tuple[tuple[int, str], ...]]:
    pieces = line.split(" ")
    starts = [0]
    for piece in pieces[:-1]:
        starts.append(starts[-1] + len(piece) + 1)
    checks: list[tuple[int, str]] = []
    named = set()
    for place, (start, piece) in enumerate(zip(starts, pieces, strict=True)):
        if any(not free[start + run.start()] for run in _DIGITS.finditer(piece)):
            checks.append((place, piece))
            named.add(place)
    cuts = []
    for begin, end, name, target, number in spans:
        place = line.count(" ", 0, begin)
        start, piece = starts[place], pieces[place]
        if end > start + len(piece) or place in named:
            return None, ()
        before, after = piece[: begin - start], piece[end - start :]
        side = 0
        if _DIGITS.search(before) or _DIGITS.search(after):
            if piece.count("/") != 1:
                return None, ()
            side = 1 if "/" in after else 2
            before, after = before.rpartition("/")[2], after.partition("/")[0]
            if _DIGITS.search(before) or _DIGITS.search(after):
                return None, ()
        cuts.append(Cut(place, side, len(before), -len(after) or None, name, target, number))
    return tuple(cuts), tuple(checks)


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
