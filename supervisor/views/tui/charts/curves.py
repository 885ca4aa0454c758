"""Curves with axes, including a window, a cursor that reads values, and marks (pure).

The x axis shows steps, epochs, times from the log, or reading numbers. If a log is read after it was written, the
time it was read is meaningless, so no axis shows it. An axis is available if nearly all points have a value, the
values differ, and they never drop sharply within an attempt, as a counter that restarts each epoch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import compress, groupby, pairwise
from types import MappingProxyType
from typing import Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from supervisor.views import format as fm
from supervisor.views.model.thinned_series import Point, Track, lives_on
from supervisor.views.tui.charts.braille import (
    Canvas,
    Scale,
    buckets,
    draw_band,
    draw_line,
    labels,
    log_ticks,
    loss_bounds,
    row_of,
    ticks,
    time_ticks,
)
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, cells
from supervisor.views.wording.translate import Tr, english

# A window is never narrower than this share of the whole.
ZOOM_LEAST = 1 / 4096
# From these heights on, draw a line below the curves, and another line for the labels of marks.
LINE_HEIGHT = 8
MARKS_HEIGHT = 10
# The width of a number below the axis with its margin, and of a time span.
NUMBER_CELLS = 7
SPAN_CELLS = 11
NONE: Mapping[int, float] = MappingProxyType({})
# This share of the points must have the value. The other points are placed next to their neighbors.
KNOWN_RATIO = 0.9
# A value below this share of the previous one means that the counter restarted.
BACK_RATIO = 0.5
# Lines closer together than this were read together, so only their order is meaningful.
TIME_LEAST_S = 2.0
# A page of charts makes the same query for about a hundred tracks at each key press.
MOST_KEPT = 512

P = ParamSpec("P")
T = TypeVar("T")


def of_track(work: Callable[Concatenate[Track, P], T]) -> Callable[Concatenate[Track, P], T]:
    """Cache `work` by track identity and arguments. `lru_cache` would hash the whole track on every call."""
    kept: dict[tuple[object, ...], tuple[Track, T]] = {}

    def kept_work(track: Track, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (id(track), *args, *kwargs.items())
        found = kept.get(key)
        if found is None or found[0] is not track:  # an id may be reused
            if len(kept) >= MOST_KEPT:
                kept.clear()
            found = kept[key] = (track, work(track, *args, **kwargs))
        return found[1]

    return kept_work


class Axis(StrEnum):
    """The kinds of x axis, best first."""

    STEP = "step"
    EPOCH = "epoch"
    TIME = "time"
    NUMBER = "reading"


def axes_of(tracks: Sequence[Track]) -> list[Axis]:
    """Return the axes that fit these points, best first. The reading number always fits."""
    given = [track for track in tracks if track]
    if not given:
        return [Axis.STEP]
    return [axis for axis in Axis if axis is Axis.NUMBER or _can_hold(given, axis)]


def axis_for(wanted: Axis | None, tracks: Sequence[Track]) -> Axis:
    """Return the wanted axis if it fits the points, otherwise the best one."""
    axes = axes_of(tracks)
    return wanted if wanted in axes else axes[0]


@of_track
def positions(track: Track, axis: Axis) -> Sequence[float]:
    """Return each point's position. A point with no value keeps the previous one. Epoch readings are spread over the epoch."""
    if axis is Axis.NUMBER and track and not track[-1].number:  # not numbered
        return [float(at) for at in range(1, len(track) + 1)]
    values = [value_of(point, axis) for point in track]
    known = next((value for value in values if value is not None), 0.0)
    found = []
    for value in values:
        known = known if value is None else value
        found.append(known)
    return _within_epochs(track, found) if axis is Axis.EPOCH else found


def value_of(point: Point, axis: Axis) -> float | None:
    """Return a point's value on an axis, or None if it has none."""
    return point.number if axis is Axis.NUMBER else getattr(point, axis)


@of_track
def shifted(track: Track, by_s: float) -> Track:
    """Shift points by `by_s` seconds, for a run that started earlier or later."""
    return tuple(
        point._replace(t=point.t + by_s, line_t=None if point.line_t is None else point.line_t + by_s)
        for point in track
    )


@of_track
def span_of(track: Track, axis: Axis) -> tuple[float, float] | None:
    """Return the lowest and highest position of a track's points, or None if there are no points."""
    found = positions(track, axis)
    return (min(found), max(found)) if found else None


@of_track
def _known(track: Track, axis: Axis) -> tuple[int, float, float] | None:
    """Return how many points have a value on an axis, the min and the max, or None if the counter restarts in an attempt."""
    given = [(point.attempt, value) for point in track if (value := value_of(point, axis)) is not None]
    if any(mine == other and b < BACK_RATIO * a for (mine, a), (other, b) in pairwise(given)):
        return None
    values = [value for _, value in given] or [math.inf, -math.inf]
    return len(given), min(values), max(values)


def _within_epochs(track: Track, values: list[float]) -> list[float]:
    """Spread readings logged with a whole epoch number over that epoch. The last epoch is spaced like the one before."""
    if any(value % 1 for value in values):
        return values  # the log has fractional epochs
    found: list[float] = []
    before = 1
    keys = [(point.attempt, value) for point, value in zip(track, values, strict=True)]
    groups = [(value, len(list(group))) for (_, value), group in groupby(keys)]
    for number, (value, count) in enumerate(groups):
        size = count if number < len(groups) - 1 else max(count, before)
        found += [value + at / size for at in range(count)]
        before = count
    return found


def _can_hold(tracks: Sequence[Track], axis: Axis) -> bool:
    found = [each for track in tracks if (each := _known(track, axis)) is not None]
    count, known = sum(map(len, tracks)), sum(number for number, _, _ in found)
    # A time axis needs a time on every point, because nothing shows when the other points were written.
    if len(found) < len(tracks) or known < count * (1.0 if axis is Axis.TIME else KNOWN_RATIO):
        return False
    if count == 1:
        return axis is not Axis.EPOCH
    span = max(high for _, _, high in found) - min(low for _, low, _ in found)
    return span >= TIME_LEAST_S if axis is Axis.TIME else span > 0


class Look(msgspec.Struct, frozen=True):
    """A chart's view settings. `axis` is the x axis, or None for the best; `window` and `cursor` are in its units."""

    axis: Axis | None = None
    log: bool = False
    window: tuple[float, float] | None = None
    cursor: float | None = None

    def zoomed(self, factor: float, whole: tuple[float, float]) -> Look:
        """Scale the window by `factor` around the cursor, or its latest edge if there is no cursor."""
        low, high = self.window or whole
        span = whole[1] - whole[0]
        size = min(max((high - low) * factor, span * ZOOM_LEAST), span)
        if size >= span:
            return replace(self, window=None)
        at = self.cursor if self.cursor is not None else high
        share = (at - low) / (high - low)
        return _moved(self, at - share * size, size, whole)

    def pointed(self, at: float, whole: tuple[float, float]) -> Look:
        """Move the cursor to a value, and the window with it."""
        at = min(max(at, whole[0]), whole[1])
        look = replace(self, cursor=at)
        if self.window is None or self.window[0] <= at <= self.window[1]:
            return look
        size = self.window[1] - self.window[0]
        return _moved(look, at - size / 2, size, whole)


def _moved(look: Look, start: float, size: float, whole: tuple[float, float]) -> Look:
    """Return the view with a window of `size` at `start`, shifted to stay within the whole range."""
    start = min(max(start, whole[0]), whole[1] - size)
    return replace(look, window=(start, start + size))


class Curve(msgspec.Struct, frozen=True):
    """A series to draw. `smoothed` is parallel to `points`; if it is empty, the means are drawn.

    `cuts` maps each attempt to the step from which a later attempt repeated it; the repeated part is drawn faintly.
    `band` is the style of the value range behind the smoothed curve, or None. `letter` is drawn at the latest point.
    """

    points: Track
    smoothed: tuple[float, ...] = ()
    style: TextStyle = TextStyle.LOSS
    cuts: Mapping[int, float] = NONE
    band: TextStyle | None = TextStyle.BAND
    letter: str = ""


class Mark(msgspec.Struct, frozen=True):
    """An event on a step or time axis: a rule behind the curves and a label below. `step` is None if unknown."""

    step: float | None
    t: float
    text: str
    style: TextStyle


class Plot(NamedTuple):
    """A drawn chart, with its x scale for the cursor and mouse.

    `left` is the number of cells before the first column, and `height` the number of rows above the axis.
    """

    rows: list[Row]
    x: Scale
    left: int
    height: int = 0

    def with_cursor(self, at: float | None) -> Plot:
        """Return the plot with a vertical line behind the curves at an x value, or without one if `at` is None."""
        if at is None:
            return self
        column = self.left + min(max(self.x.dot(at) // 2, 0), self.x.dots // 2 - 1)
        rows = [_ruled(row, column) for row in self.rows[: self.height]]
        return self._replace(rows=[*rows, *self.rows[self.height :]])


def extent(look: Look, tracks: Sequence[Track]) -> tuple[float, float] | None:
    """Return the lowest and highest position in any track, or None if there are no points."""
    axis = axis_for(look.axis, tracks)
    spans = [span for track in tracks if (span := span_of(track, axis)) is not None]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None


def nearest(look: Look, tracks: Sequence[Track], at: float) -> Point | None:
    """Return the first track's point closest to a position, preferring the later attempt, or None if it is empty."""
    if not tracks or not tracks[0]:
        return None
    xs = positions(tracks[0], axis_for(look.axis, tracks))
    _, found = min(zip(xs, tracks[0], strict=True), key=lambda one: (abs(one[0] - at), -one[1].attempt))
    return found


Laid: TypeAlias = tuple[Curve, Sequence[float]]
"""A curve and the position of each of its points."""
Below: TypeAlias = list[tuple[int, str, TextStyle]]
"""Labels below the axis, each a column, text and style."""


def plot(
    curves: Sequence[Curve],
    look: Look,
    width: int,
    height: int,
    *,
    marks: Sequence[Mark] = (),
    circles: Track = (),
    lost: Track = (),
    axis_cells: int = 0,
    start_t: float = 0.0,
) -> Plot | None:
    """Draw curves and their axes in `height` rows. Return None if there is nothing to draw or no room.

    Args:
        curves: the curves; later ones are drawn over earlier ones.
        look: the window, cursor and log-scale setting.
        width: the width in cells.
        height: the height in rows.
        marks: the events to mark.
        circles: individual values, such as a validation loss.
        lost: non-finite points, drawn at the top edge: a cross for NaN, otherwise the infinity sign.
        start_t: where a time axis starts, in wall-clock seconds.
        axis_cells: minimum width of the y axis including its numbers, to align stacked charts.
    """
    tracks = [*(curve.points for curve in curves), lost]
    whole = extent(look, tracks)
    if whole is None or height < 3 or width < 20:
        return None
    axis = axis_for(look.axis, tracks)
    low_x, high_x = look.window or whole
    laid = [_within(curve, positions(curve.points, axis), low_x, high_x) for curve in curves]
    points = [point for curve, _ in laid for point in curve.points]
    if not points:
        return None
    has_words = height >= MARKS_HEIGHT and bool(_marked(marks, Scale(low_x, high_x, 1), axis))
    rows = height - (2 if height >= LINE_HEIGHT else 1) - has_words
    smoothed = [value for curve, _ in laid for value in curve.smoothed]
    is_log = look.log and min(p.low for p in points) > 0
    low, high = loss_bounds(points, smoothed, log=is_log)
    y = Scale(low, high, 4 * rows, flipped=True, log=is_log)
    numbers = (log_ticks if is_log else ticks)(low, high, max(3, rows * 3 // 5))
    names: dict[int, str] = {}
    for value, text in zip(numbers, [f"{v:g}" for v in numbers] if y.log else labels(numbers), strict=True):
        names.setdefault(min(max(y.dot(value) // 4, 0), rows - 1), text)
    left = max(max(map(len, names.values()), default=0) + 2, axis_cells)
    canvas = Canvas(width - left, rows)
    x = Scale(low_x, high_x, canvas.dot_columns)
    below = _marked(marks, x, axis)
    for column, _, style in below:
        canvas.rule(column, "┊", style)
    for curve, xs in laid:
        _draw(canvas, curve, xs, x, y)
    _mark_clipped(canvas, laid, x, y)
    for point in circles:
        if (at := value_of(point, axis)) is not None:
            style = TextStyle.STRONG if lives_on(point, laid[-1][0].cuts) else TextStyle.DIM
            canvas.mark(x.dot(at) // 2, y.dot(point.mean) // 4, "○", style)
    for point in sorted(lost, key=lambda one: math.isinf(one.mean)):  # many nan must not cover inf
        if (at := value_of(point, axis)) is not None:
            canvas.mark(x.dot(at) // 2, 0, "×" if math.isnan(point.mean) else "∞", TextStyle.BAD)
    drawn: list[Row] = []
    for number, spans in enumerate(canvas.drawn()):
        name = names.get(number, "")
        drawn.append((Span(f"{name:>{left - 2}} {'┤' if name else '│'}", TextStyle.DIM), *spans))
    drawn += _under(
        canvas.columns, left, x, axis, start_t, below, line=height >= LINE_HEIGHT, words=has_words
    )
    return Plot(drawn, x, left, rows).with_cursor(look.cursor)


def _within(curve: Curve, xs: Sequence[float], low: float, high: float) -> Laid:
    """Return the points in the window, plus one on each side so that lines reach the edges."""
    points = curve.points
    if not points or (low <= min(xs) and max(xs) <= high):
        return curve, xs
    inside = [low <= place <= high for place in xs]
    near = [any(inside[max(at - 1, 0) : at + 2]) for at in range(len(points))]
    kept = replace(
        curve, points=tuple(compress(points, near)), smoothed=tuple(compress(curve.smoothed, near))
    )
    return kept, list(compress(xs, near))


def _draw(canvas: Canvas, curve: Curve, xs: Sequence[float], x: Scale, y: Scale) -> None:
    points, values = curve.points, curve.smoothed
    lives = [lives_on(point, curve.cuts) for point in points]
    if not all(lives):
        gone = [not alive for alive in lives]
        left, places_left = list(compress(points, gone)), list(compress(xs, gone))
        found = buckets(left, places_left, x, list(compress(values, gone)) if values else None)
        draw_line(canvas, canvas.layer(TextStyle.DIM), found, y)
        points, values = tuple(compress(points, lives)), tuple(compress(values, lives))
        xs = list(compress(xs, lives))
    if not points:
        return
    if values and curve.band is not None:
        draw_band(canvas, canvas.layer(curve.band, below=True), buckets(points, xs, x), y)
    found = buckets(points, xs, x, values or None)
    draw_line(canvas, canvas.layer(curve.style), found, y)
    for bucket in reversed(found) if curve.letter else ():
        column, row = bucket.x // 2, y.dot(bucket.mean) // 4
        if canvas.is_free(column, row):  # no other curve's letter is there
            canvas.mark(column, row, curve.letter, curve.style)
            return


def _mark_clipped(canvas: Canvas, laid: Sequence[Laid], x: Scale, y: Scale) -> None:
    """Mark the columns whose values go off the top of the y axis."""
    for curve, xs in laid:
        for point, at in zip(curve.points, xs, strict=True):
            value = point.high if curve.smoothed else point.mean  # as high as it is drawn
            if value > y.high and x.low <= at <= x.high:
                canvas.mark(x.dot(at) // 2, 0, "▲", TextStyle.DIM)


def _ruled(spans: Row, column: int) -> Row:
    """Draw the cursor's rule in a row if the cell is blank or contains only a mark's rule."""
    found: list[Span] = []
    for text, style in spans:
        at, column = column, column - len(text)
        if not 0 <= at < len(text) or text[at] not in " ┊":
            found.append(Span(text, style))
            continue
        found += [Span(text[:at], style), Span("│", TextStyle.STRONG), Span(text[at + 1 :], style)]
    return tuple(span for span in found if span.text)


def _marked(marks: Sequence[Mark], x: Scale, axis: Axis) -> Below:
    """Return the visible marks. Only step and time axes have any."""
    if axis in {Axis.EPOCH, Axis.NUMBER}:
        return []
    places = [(mark.step if axis is Axis.STEP else mark.t, mark) for mark in marks]
    return [
        (x.dot(at) // 2, mark.text, mark.style)
        for at, mark in places
        if at is not None and x.low <= at <= x.high
    ]


def _under(
    columns: int, left: int, x: Scale, axis: Axis, start_t: float, below: Below, *, line: bool, words: bool
) -> list[Row]:
    """Return the rows below the canvas: the axis line, mark labels and axis numbers."""
    numbers = _x_labels(x, columns, axis, start_t)
    found: list[Row] = []
    if line:
        rule = ["─"] * columns
        for places, sign in ((below, "┊"), (numbers, "┴")):
            for column, _, _ in places:
                rule[column] = sign
        found.append((Span(" " * (left - 1) + "└" + "".join(rule), TextStyle.DIM),))
    if words:
        found.append((Span(" " * left), *_texts(below, columns)))
    return [*found, (Span(" " * left), *_texts(numbers if words else [*below, *numbers], columns))]


def _x_labels(x: Scale, columns: int, axis: Axis, start_t: float) -> Below:
    """Return the x-axis labels with their columns."""
    cells_each = SPAN_CELLS if axis is Axis.TIME else max(NUMBER_CELLS, len(fm.whole(x.high)) + 3)
    most = max(2, columns // cells_each)
    if axis is Axis.TIME:
        spans = time_ticks(x.low - start_t, x.high - start_t, most)
        at, texts = [start_t + value for value in spans], list(map(fm.span, spans))
    else:
        counted = axis is not Axis.EPOCH  # no values exist between two steps
        at = ticks(x.low, x.high, most, least=1.0 if counted else 0.0)
        texts = [fm.whole(v) for v in at] if counted else labels(at)
    return [(x.dot(value) // 2, text, TextStyle.DIM) for value, text in zip(at, texts, strict=True)]


def _texts(taken: Below, width: int) -> Row:
    """Place labels under their columns. If two would touch, keep whichever comes first in the list."""
    line: list[tuple[str, TextStyle]] = [(" ", TextStyle.DIM)] * width
    for column, text, style in taken:
        start = min(max(column - len(text) // 2, 0), max(width - len(text), 0))
        before, after = max(start - 1, 0), min(start + len(text) + 1, width)
        if len(text) <= width and all(character == " " for character, _ in line[before:after]):
            line[start : start + len(text)] = [(character, style) for character in text]
    return row_of(line)


def readout(
    look: Look,
    tracks: Sequence[Track],
    say: Callable[[float], str],
    tr: Tr = english,
    *,
    lost: Track = (),
    room: int | None = None,
) -> Row:
    """Describe the point at the cursor: step or epoch, value (with its range if points were merged), time of day.

    For an earlier attempt, name the attempt too. `lost` is as in `plot`. If the text does not fit in `room`
    cells, drop the range and the time of day first, then the position.
    """
    if look.cursor is None:
        return ()
    at, axis = look.cursor, axis_for(look.axis, tracks)
    near = [found for track in (tracks[:1], [lost]) if (found := nearest(look, track, at)) is not None]
    if not near:
        return ()
    point = min(near, key=lambda one: abs((value_of(one, axis) or 0.0) - at))
    spread = ""
    if point.weight > 1 and not math.isclose(point.low, point.high):
        spread = f" ({say(point.low)}…{say(point.high)})"
    where = tr(f"attempt {point.attempt}") + "  " if point.attempt != tracks[0][-1].attempt else ""
    if point.step is not None:
        where += tr(f"step {fm.whole(point.step)}  ")
    elif point.epoch is not None:
        where += tr(f"epoch {point.epoch:g}") + "  "
    elif point.late:
        where += tr(f"reading {fm.whole(point.number)}") + "  "
    when = f"  {fm.time_of_day(point.time)}" if point.time is not None else ""
    place, value = Span(where, TextStyle.DIM), Span(say(point.mean), TextStyle.STRONG)
    forms = [(place, value, Span(f"{spread}{when}", TextStyle.DIM)), (place, value), (value,)]
    return next((form for form in forms if room is None or cells(form) <= room), forms[-1])


def axis_word(axis: Axis) -> str:
    """Return an axis's English label for a chart title, or "" for steps, the default axis."""
    if axis is Axis.TIME:
        return "by time since the start"
    return "" if axis is Axis.STEP else f"by {axis}"
