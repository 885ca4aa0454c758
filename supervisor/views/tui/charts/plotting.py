"""From points to braille: buckets a dot column wide, ticks at round numbers (pure)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

import msgspec

from supervisor.views.model.history import Point
from supervisor.views.tui.charts.canvas import Canvas
from supervisor.views.tui.widgets.paint import TextStyle

# Of less a third has no logarithm: that is next to the least number that there is.
LEAST_SPAN = 1e-300
# Values are left outside the y axis only where that makes the rest this much higher.
CLIP_FROM = 1.25
# In fewer rows each may have its number; at most so many rows lie between two; so much wider the bounds may become for that.
FEW_ROWS = 5
MOST_APART = 6
WIDER = 1.2
# A row more between two numbers is as bad as bounds so much wider.
SPARSE = 0.05
# The learning rates: `3e-4`.
POWERS_BELOW = 0.002
MOST_DIGITS = 6
MOST_IN_POWERS = 3
# More than these are written only where two labels would be the same: at most so many more.
MORE_DIGITS = 10
# How far apart the numbers of an axis of time may be; beyond these by whole days.
# A bound so little above a round time is that time.
ROUNDED_S = 1e-4
TIME_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1200,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
)


class Bucket(NamedTuple):
    """What falls into one dot column."""

    x: int
    low: float
    mean: float
    high: float
    attempt: int


class Scale(msgspec.Struct, frozen=True):
    """A map of `low`..`high` onto `dots` dots; `flipped`: from the top, as rows count; `log`: by logarithm."""

    low: float
    high: float
    dots: int
    flipped: bool = False
    log: bool = False

    def dot(self, value: float) -> int:
        """The dot of a value; beyond the ends where the value is."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low * 1e-9, 5e-324))
        span = high - low
        position = (value - low) / span if span > 0 else 0.5
        dot = round(min(max(position, -1.0), 2.0) * (self.dots - 1))
        dot = min(max(dot, -4), self.dots + 4)
        return self.dots - 1 - dot if self.flipped else dot

    def dotter(self) -> Callable[[float], int]:
        """`dot` for many values: what does not change between them is worked out once."""
        low, span, most, flipped = self.low, self.high - self.low, self.dots - 1, self.flipped
        if self.log or span <= 0:
            return self.dot

        def dot(value: float) -> int:
            position = (value - low) / span
            if 0.0 <= position <= 1.0:
                return most - round(position * most) if flipped else round(position * most)
            return self.dot(value)

        return dot


def buckets(
    points: Sequence[Point],
    xs: Sequence[float],
    scale: Scale,
    values: Sequence[float] | None = None,
) -> list[Bucket]:
    """Points of one dot column and attempt as one: minimum, mean and maximum.

    Args:
        points: those to draw.
        xs: where each stands.
        scale: of the x axis.
        values: in place of their means.
    """
    found: list[Bucket] = []
    dot = scale.dotter()
    means = [point.mean for point in points] if values is None else values
    x = count = 0
    low = mean = high = 0.0
    attempt: int | None = None
    for point, place, value in zip(points, xs, means, strict=True):
        at = dot(place)
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
    """From minimum to maximum of each column; adjacent columns of one attempt are joined at their means."""
    draw_line(canvas, layer, found, y)
    dot = y.dotter()
    for bucket in found:
        canvas.span(layer, bucket.x, dot(bucket.low), dot(bucket.high))


def draw_line(canvas: Canvas, layer: dict[int, int], found: Sequence[Bucket], y: Scale) -> None:
    """The means, joined within an attempt."""
    dot = y.dotter()
    last: Bucket | None = None
    before = 0
    for bucket in found:
        now = dot(bucket.mean)
        if last is not None and last.attempt == bucket.attempt and bucket.x >= last.x:
            canvas.line(layer, last.x, before, bucket.x, now)
        else:
            canvas.span(layer, bucket.x, now, now)
        last, before = bucket, now


def draw_area(
    canvas: Canvas, found: Sequence[Bucket], y: Scale, style_of: Callable[[float], TextStyle]
) -> None:
    """The means as an area down to the bottom, each column of cells in the style of its mean."""
    values: dict[int, float] = {}
    last: Bucket | None = None
    for bucket in found:
        start = bucket.x if last is None or last.attempt != bucket.attempt else last.x + 1
        values |= dict.fromkeys(range(min(start, bucket.x), bucket.x + 1), bucket.mean)
        last = bucket
    dot = y.dotter()
    layers: dict[TextStyle, dict[int, int]] = {}
    for _, column in groupby(sorted(values), lambda x: x // 2):
        dots = list(column)
        style = style_of(fmean(values[x] for x in dots))
        layer = layers[style] if style in layers else layers.setdefault(style, canvas.layer(style))
        for x in dots:
            canvas.span(layer, x, dot(values[x]), canvas.dot_rows - 1)


def ticks(low: float, high: float, most: int, *, least: float = 0.0) -> list[float]:
    """At most `most` round numbers within the bounds: steps of 1, 2 or 5 times a power of ten, of at least `least`."""
    span = high - low
    if span < LEAST_SPAN or most < 1 or not math.isfinite(span):
        return [low] if math.isfinite(low) else []
    power = 10.0 ** math.floor(math.log10(span / most))
    found: list[float] = []
    for step in (max(least, power * factor) for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor((high + 1e-9 * span) / step)
        # By how many there are, not by how often the step goes into the span: of 1..69 in three 20, 40, 60.
        if last - first < most:
            found = [at * step for at in range(first, last + 1)]
            break
    return found


def even_bounds(low: float, high: float, rows: int) -> tuple[float, float, float]:
    """Bounds a little wider, between which round numbers stand a whole number of rows apart, and how far apart; 0 where that takes too much.

    A number stands in the row that holds its dot: else some are two rows apart and some three, as on an axis that is not linear.
    """
    span = high - low
    if not span > LEAST_SPAN or not math.isfinite(span) or rows < 2:
        return low, high, 0.0
    power = 10.0 ** math.floor(math.log10(span / rows))
    found = []
    for step in (power * factor for factor in (1, 2, 5, 10, 20, 50, 100)):
        for apart in range(1 if rows < FEW_ROWS else 2, min(MOST_APART, max(rows // 2, 2)) + 1):
            dot = step / apart / 4  # numbers stand on dots: none is rounded up and the next one down
            start = math.floor(low / dot + 1e-9) * dot
            end = start + dot * (4 * rows - 1)
            if high <= end <= start + WIDER * span:
                found.append(((end - start) * (1 + SPARSE * apart), step, start, end))
    if not found:
        return low, high, 0.0
    _, step, start, end = min(found)
    return start, end, step


def time_ticks(low_s: float, high_s: float, most: int) -> list[float]:
    """At most `most` round spans within the bounds: seconds, minutes, hours, days."""
    width = high_s - low_s
    if width < 1 or most < 1 or not math.isfinite(width):
        return [low_s] if math.isfinite(low_s) else []
    days = math.ceil(width / (86400 * most)) * 86400.0
    for step in (*TIME_STEPS_S, days):
        first, last = math.ceil((low_s - ROUNDED_S) / step), math.floor((high_s + ROUNDED_S) / step)
        if last - first < most:
            break
    return [step * at for at in range(first, last + 1)][:most]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` of 1, 2, 5 times powers of ten within the bounds; where those are too many, powers alone.

    Bounds within half a decade are nearly linear: they get `ticks`.
    """
    if low <= 0 or high / low < 3:
        return ticks(low, high, most)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**power for power in range(first, last + 1) for f in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most:
            return found
    every = -(-len(found) // max(most, 1))
    return found[::every]


def labels(values: Sequence[float]) -> list[str]:
    """Ticks as text, all with as many digits as it takes to tell them apart."""
    found: list[str] = []
    for more in range(MORE_DIGITS):
        found = _labels(values, more)
        if len(set(found)) == len(found):
            break
    return found


def _labels(values: Sequence[float], more: int) -> list[str]:
    """With the digits that are usual and `more`."""
    if len(values) < 2:
        return [f"{value:g}" if 1e-3 <= abs(value) < 1e6 or not value else f"{value:.3g}" for value in values]
    if values[0] > 0 and values[-1] / values[0] >= 50:
        return [f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.{more}e}" for value in values]
    most, step = max(map(abs, values)), abs(values[1] - values[0])
    power, unit = (1e6, "M") if most >= 1e6 else (1e3, "k")
    if 1e4 <= most < 1e9 and step >= 1e-3 * power:  # six digits are written
        return [f"{value / power:.{6 + more}g}{unit if value else ''}" for value in values]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if most < POWERS_BELOW or most >= 1e5:
        return [_in_powers(value, step, MOST_IN_POWERS + more) for value in values]
    return [f"{value:.{min(digits, MOST_DIGITS + more)}f}" for value in values]


def _in_powers(value: float, step: float, most: int) -> str:
    """``2e-4``, ``1.5e-4``: with no more digits than the step needs."""
    if abs(value) < step / 2:
        return "0"
    digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - math.floor(math.log10(step) + 1e-9))
    number, _, exponent = f"{value:.{min(digits, most)}e}".partition("e")
    return f"{number}e{int(exponent)}"


def log_bounds(points: Sequence[Point], smoothed: Sequence[float]) -> tuple[float, float]:
    """What a logarithmic y axis of positive points spans: all of them, for such an axis presses nothing flat."""
    low, high = min(p.low for p in points), max([max(p.high for p in points), *smoothed])
    ratio = high / low
    pad = ratio**0.02 if 1 + 1e-9 < ratio < math.inf else 1.05
    return low / pad, min(high * pad, sys.float_info.max)


def loss_bounds(points: Sequence[Point], smoothed: Sequence[float]) -> tuple[float, float]:
    """What the y axis spans: all that is smooth, and the raw values but their upper fiftieth.

    One wild value would press the curve flat. So would the first steps: the smoothed values of the first twentieth do not count.
    """
    early = len(smoothed) // 20  # a fiftieth, and as far as it is smoothed into the next ones
    lows = sorted(p.low for p in points)
    highs = sorted(p.high for p in points)
    low = min([lows[0], *smoothed])
    high = max([highs[min(len(highs) - 1, math.floor(len(highs) * 0.98))], *smoothed[early:]])
    top = max([highs[-1], *smoothed])
    if top - low <= CLIP_FROM * (high - low):
        high = top
    if high - low <= 1e-9 * abs(high):  # a constant, but for what adding floats leaves
        pad = abs(high) * 0.05 or 1.0
        return low - pad, high + pad
    pad = 0.04 * (high - low)
    return low - pad, high + pad
