"""A braille canvas (2 × 4 dots and one color per cell), functions that draw on it, and axis numbers (pure).

Dot patterns follow Unicode's Braille Patterns block (U+2800; dot numbering from ISO/TR 11548-1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

import msgspec

from supervisor.views.model.thinned_series import Point
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle

# Bit of the dot at (column of two, row of four) within a braille cell.
BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLANK = 0x2800
_EMPTY = (" ", TextStyle.PLAIN)
# A span smaller than this has no usable logarithm.
LEAST_SPAN = 1e-300
# Leave values outside the y axis only if the rest then grows this much taller.
CLIP_FROM = 1.25
# Possible distances between the numbers of a time axis. Beyond these, use whole days.
TIME_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


class Canvas:
    """A canvas of `columns` by `rows` cells. Later layers hide earlier ones, and marks hide dots."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._layers: list[tuple[TextStyle, dict[int, int]]] = []
        self._marks: dict[int, tuple[str, TextStyle]] = {}
        self._under: dict[int, tuple[str, TextStyle]] = {}

    @property
    def dot_columns(self) -> int:
        """The width in dots."""
        return 2 * self.columns

    @property
    def dot_rows(self) -> int:
        """The height in dots."""
        return 4 * self.rows

    def layer(self, style: TextStyle, *, below: bool = False) -> dict[int, int]:
        """Add a layer on top, or at the bottom if `below`. A layer maps cell indices to dot bits."""
        cells: dict[int, int] = {}
        self._layers.insert(0 if below else len(self._layers), (style, cells))
        return cells

    def span(self, layer: dict[int, int], x: int, y0: int, y1: int) -> None:
        """Set the dots in column `x` from `y0` to `y1` inclusive, counted from the top and clipped to the canvas."""
        if not 0 <= x < self.dot_columns:
            return
        low, high = min(y0, y1), max(y0, y1)
        for y in range(max(low, 0), min(high, self.dot_rows - 1) + 1):
            cell = (y >> 2) * self.columns + (x >> 1)
            layer[cell] = layer.get(cell, 0) | BITS[x & 1][y & 3]

    def line(self, layer: dict[int, int], x0: int, y0: int, x1: int, y1: int) -> None:
        """Draw an unbroken line of dots."""
        if x1 <= x0:
            self.span(layer, x0, y0, y1)
            return
        before = y0
        for x in range(x0, x1 + 1):
            y = y0 + round((y1 - y0) * (x - x0) / (x1 - x0))
            # Start one dot from the end of the last column, so that a steep line has no doubled corners.
            start = y if abs(y - before) <= 1 else before + (1 if y > before else -1)
            self.span(layer, x, start, y)
            before = y

    def mark(self, column: int, row: int, character: str, style: TextStyle) -> None:
        """Draw a character over whatever is in a cell."""
        if 0 <= column < self.columns and 0 <= row < self.rows:
            self._marks[row * self.columns + column] = (character, style)

    def is_free(self, column: int, row: int) -> bool:
        """Check whether a cell is on the canvas and has no mark yet."""
        inside = 0 <= column < self.columns and 0 <= row < self.rows
        return inside and row * self.columns + column not in self._marks

    def rule(self, column: int, character: str, style: TextStyle) -> None:
        """Draw a vertical rule behind everything else."""
        if 0 <= column < self.columns:
            for row in range(self.rows):
                self._under[row * self.columns + column] = (character, style)

    def drawn(self) -> list[Row]:
        """Return the rows of cells, top to bottom. Adjacent cells of the same style share a span."""
        shown = dict(self._under)
        for style, cells in self._layers:
            shown |= {cell: (chr(BLANK + bits), style) for cell, bits in cells.items()}
        shown |= self._marks
        columns = self.columns
        return [
            row_of([shown.get(cell, _EMPTY) for cell in range(start, start + columns)])
            for start in range(0, self.rows * columns, columns)
        ]


def row_of(cells: Iterable[tuple[str, TextStyle]]) -> Row:
    """Merge adjacent cells of the same style into spans."""
    return tuple(
        Span("".join([character for character, _ in run]), style)
        for style, run in groupby(cells, itemgetter(1))
    )


class Bucket(NamedTuple):
    """An attempt's points within one dot column."""

    x: int
    low: float
    mean: float
    high: float
    attempt: int


class Scale(msgspec.Struct, frozen=True):
    """Maps `low`..`high` onto `dots` dots: on a logarithmic scale if `log`, and counted from the top if `flipped`."""

    low: float
    high: float
    dots: int
    flipped: bool = False
    log: bool = False

    def dot(self, value: float) -> int:
        """Return the dot for a value. A value outside the range gets a dot outside the canvas."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low * 1e-9, 5e-324))
        span = high - low
        position = (value - low) / span if span > 0 else 0.5
        dot = round(min(max(position, -1.0), 2.0) * (self.dots - 1))
        dot = min(max(dot, -4), self.dots + 4)
        return self.dots - 1 - dot if self.flipped else dot


def buckets(
    points: Sequence[Point],
    xs: Sequence[float],
    scale: Scale,
    values: Sequence[float] | None = None,
) -> list[Bucket]:
    """Combine each attempt's points within a dot column into their minimum, mean and maximum.

    Args:
        points: the points to draw.
        xs: the points' positions.
        scale: the x-axis scale.
        values: values to draw instead of the means.
    """
    found: list[Bucket] = []
    means = [point.mean for point in points] if values is None else values
    x = count = 0
    low = mean = high = 0.0
    attempt: int | None = None
    for point, place, value in zip(points, xs, means, strict=True):
        at = scale.dot(place)
        if attempt == point.attempt and at == x:
            count += 1
            mean += (value - mean) / count
            low, high = min(low, point.low), max(high, point.high)
            continue
        if attempt is not None:
            found.append(Bucket(x, low, mean, high, attempt))
        x, count, attempt = at, 1, point.attempt
        low, mean, high = point.low, value, point.high
    if attempt is not None:
        found.append(Bucket(x, low, mean, high, attempt))
    return found


def draw_band(canvas: Canvas, layer: dict[int, int], found: Sequence[Bucket], y: Scale) -> None:
    """Draw each column from minimum to maximum, joining adjacent columns of an attempt at their means."""
    draw_line(canvas, layer, found, y)
    for bucket in found:
        canvas.span(layer, bucket.x, y.dot(bucket.low), y.dot(bucket.high))


def draw_line(canvas: Canvas, layer: dict[int, int], found: Sequence[Bucket], y: Scale) -> None:
    """Draw the means, joined within an attempt."""
    last: Bucket | None = None
    before = 0
    for bucket in found:
        now = y.dot(bucket.mean)
        if last is not None and last.attempt == bucket.attempt and bucket.x >= last.x:
            canvas.line(layer, last.x, before, bucket.x, now)
        else:
            canvas.span(layer, bucket.x, now, now)
        last, before = bucket, now


def draw_area(
    canvas: Canvas, found: Sequence[Bucket], y: Scale, style_of: Callable[[float], TextStyle]
) -> None:
    """Fill the area below the means. Each column of cells is styled by its mean."""
    values: dict[int, float] = {}
    last: Bucket | None = None
    for bucket in found:
        start = bucket.x if last is None or last.attempt != bucket.attempt else last.x + 1
        values |= dict.fromkeys(range(min(start, bucket.x), bucket.x + 1), bucket.mean)
        last = bucket
    layers: dict[TextStyle, dict[int, int]] = {}
    for _, column in groupby(sorted(values), lambda x: x // 2):
        dots = list(column)
        style = style_of(fmean(values[x] for x in dots))
        layer = layers[style] if style in layers else layers.setdefault(style, canvas.layer(style))
        for x in dots:
            canvas.span(layer, x, y.dot(values[x]), canvas.dot_rows - 1)


def ticks(
    low: float, high: float, most: int, *, least: float = 0.0, steps: Sequence[float] = ()
) -> list[float]:
    """Return up to `most` round numbers between `low` and `high`, spaced by one of `steps`, or 1, 2 or 5 × 10**n (>= `least`)."""
    span = high - low
    if span < LEAST_SPAN or most < 1 or not math.isfinite(span):
        return [low] if math.isfinite(low) else []
    power = 10.0 ** math.floor(math.log10(span / most))
    for step in steps or [max(least, power * factor) for factor in (1, 2, 5, 10, 20)]:
        first, last = math.ceil(low / step - 1e-9), math.floor((high + 1e-9 * span) / step)
        # Choose by the number of ticks, not by span divided by step. For 1..69 in three ticks, 20, 40, 60.
        if last - first < most:
            return [at * step for at in range(first, last + 1)]
    return []


def time_ticks(low_s: float, high_s: float, most: int) -> list[float]:
    """Return up to `most` round times between `low_s` and `high_s`, spaced by seconds, minutes, hours or days."""
    days = math.ceil((high_s - low_s) / (86400 * most)) * 86400.0
    return ticks(low_s, high_s, most, steps=(*TIME_STEPS_S, days, 2 * days))


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return up to `most` values between `low` and `high`: 1, 2 and 5 × powers of ten, or only the powers if that is too many.

    Bounds less than half a decade apart are nearly linear, so they use `ticks`.
    """
    if low <= 0 or high / low < 3:
        return ticks(low, high, most)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1, 2, 5), (1,)):
        found = [value for power in powers for f in factors if low <= (value := f * 10.0**power) <= high]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // max(most, 1))]


def labels(values: Sequence[float]) -> list[str]:
    """Format axis numbers with just enough digits to distinguish them: ``0.25``, ``20k``, ``1.5e-4``."""
    most = max(map(abs, values), default=0.0)
    step = min((abs(b - a) for a, b in pairwise(values)), default=0.0)
    if not step or not math.isfinite(most):
        return [f"{value:g}" for value in values]
    exponent = math.floor(math.log10(step) + 1e-9)
    power, unit, of_unit = (1e6, "M", 6) if most >= 1e6 else (1e3, "k", 3)
    if 1e4 <= most < 1e9 and exponent >= of_unit - 3:
        digits = max(0, of_unit - exponent)
        return [f"{value / power:.{digits}f}{unit}" if value else "0" for value in values]
    if 0.002 <= most < 1e5:
        return [f"{value:.{max(0, -exponent)}f}" for value in values]
    return [_in_powers(value, exponent) if abs(value) >= step / 2 else "0" for value in values]


def _in_powers(value: float, exponent: int) -> str:
    """Format a number as ``2e-4`` or ``1.5e-4``, with just enough digits for steps of 10**`exponent`."""
    digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - exponent)
    number, _, power = f"{value:.{min(digits, 15)}e}".partition("e")
    return f"{number}e{int(power)}"


def loss_bounds(points: Sequence[Point], smoothed: Sequence[float], *, log: bool) -> tuple[float, float]:
    """Return the y-axis range, which covers the smoothed values and all but the top two percent of raw values.

    Outliers would flatten the curve, and so would the first steps, so the first twentieth of the smoothed
    values is ignored. A logarithmic axis (positive points only) is not flattened and covers every value.
    """
    low, top = min([min(p.low for p in points), *smoothed]), max([max(p.high for p in points), *smoothed])
    if log:
        ratio = top / low
        pad = ratio**0.02 if 1 + 1e-9 < ratio < math.inf else 1.05
        return low / pad, min(top * pad, sys.float_info.max)
    early = len(smoothed) // 20  # a fiftieth, plus its spread by smoothing
    highs = sorted(p.high for p in points)
    high = max([highs[min(len(highs) - 1, math.floor(len(highs) * 0.98))], *smoothed[early:]])
    if top - low <= CLIP_FROM * (high - low):
        high = top
    if high - low <= 1e-9 * abs(high):  # constant, except for the rounding errors of sums
        pad = abs(high) * 0.05 or 1.0
        return low - pad, high + pad
    pad = 0.04 * (high - low)
    return low - pad, high + pad
