"""Where the values of one line stand, and which of its digits may be others in the next line of that shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from supervisor.sources.metrics.bars import find_bar
from supervisor.sources.metrics.names import STEP, TOTAL_STEPS
from supervisor.sources.metrics.readings import RANK, Parsed, Reading
from supervisor.sources.metrics.samples import FoundSample, MetricSample
from supervisor.sources.metrics.tokens import MASKED, mask, tokens
from supervisor.sources.metrics.values import WHOLE, Conversion, How, convert

FIELD, OTHER, RANKS, PAIR = range(4)
Number = Callable[[str], float]


class Span(NamedTuple):
    """Where one value stands in the line (in characters), what it is, and how it becomes a number."""

    begin: int
    end: int
    name: str
    target: int
    conversion: Conversion


class Layout(NamedTuple):
    """The values of one line, and the digits that must be the same in the next (they belong to a name)."""

    spans: tuple[Span, ...]
    fixed: tuple[tuple[int, int], ...]


def finished(
    values: dict[str, float], other: dict[str, float], rank: int | None, pair: tuple[float, float] | None
) -> MetricSample | None:
    """The sample. A pair's total counts when the pair is the named counter, or one off it."""
    if pair is not None and STEP in values and abs(pair[0] - values[STEP]) <= 1:
        values[TOTAL_STEPS] = pair[1]
    return FoundSample(values, other, rank) if values or other else None


def spans_of(parsed: Parsed, prefix: int, rank_at: tuple[int, int] | None) -> tuple[Span, ...] | None:
    """The values from left to right, in a line whose launcher's prefix is `prefix` characters long.

    `rank_at`: where in it the rank stands. None when the same place gives two values.
    """
    found: list[Span] = []
    for reading in parsed.readings:
        target = RANKS if reading.field == RANK else FIELD if reading.field else OTHER
        found.append(_span(prefix, reading, reading.field or reading.name, target))
    if parsed.pair is not None:
        taken = {(span.begin, span.end) for span in found}
        for reading, name in zip(parsed.pair, (STEP, TOTAL_STEPS), strict=True):
            if (prefix + reading.start, prefix + reading.end) not in taken:
                found.append(_span(prefix, reading, name, PAIR))
    if rank_at is not None:
        found = [span for span in found if span.target != RANKS]
        found.append(Span(*rank_at, RANK, RANKS, WHOLE))
    found.sort(key=lambda span: span.begin)
    if any(one.end > two.begin for one, two in pairwise(found)):
        return None
    return tuple(found)


def _span(prefix: int, reading: Reading, name: str, target: int) -> Span:
    return Span(prefix + reading.start, prefix + reading.end, name, target, reading.conversion)


def free_digits(line: str, prefix: int, *, is_row: bool) -> bytearray:
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


def is_plain(text: str) -> bool:
    """Whether `float` reads the text as `convert` does."""
    return "," not in text and text[-1:] != "."


def is_whole(conversion: Conversion, text: str) -> bool:
    """Whether `int` reads the text as `convert` does, which goes by way of a float."""
    return conversion == WHOLE and len(text) <= 15 and text.isascii() and text.isdigit()


def is_clock(conversion: Conversion, text: str) -> bool:
    """`3:07` or `1:02:33`."""
    bare = text.replace(":", "")
    return conversion.how is How.DURATION and bare.isascii() and bare.isdigit() and text.count(":") in {1, 2}


def number_of(conversion: Conversion, text: str) -> Number:
    """What `convert` does, made quick for texts of this shape; ValueError where `convert` has no answer."""
    how, factor = conversion
    if is_whole(conversion, text):
        return partial(_whole, conversion)
    if how is How.NUMBER and is_plain(text):
        return float if factor == 1.0 else partial(_scaled, factor)
    if how is How.INVERSE and is_plain(text):
        return partial(_inverse, factor)
    if is_clock(conversion, text):
        return _clock
    return partial(converted, conversion)


def _whole(conversion: Conversion, text: str) -> float:
    return int(text) if len(text) <= 15 else converted(conversion, text)


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
        return float(parts[0]) * 60.0 + float(parts[1])
    return float(parts[0]) * 3600.0 + float(parts[1]) * 60.0 + float(parts[2])


def converted(conversion: Conversion, text: str) -> float:
    """`convert`, with a ValueError where it has no answer."""
    value = convert(conversion, text)
    if value is None:
        raise ValueError(text)
    return value
