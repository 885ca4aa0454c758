"""Curves between their axes: a window on them, a cursor that reads them, marks (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress, groupby
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from supervisor.views import format as fm
from supervisor.views.model.history import Point, Track
from supervisor.views.tui.charts.canvas import Canvas
from supervisor.views.tui.charts.plotting import (
    Scale,
    buckets,
    draw_band,
    draw_line,
    labels,
    log_ticks,
    loss_bounds,
    ticks,
)
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle
from supervisor.views.wording.translate import Tr, english

# A window is never narrower than this share of the whole.
ZOOM_LEAST = 1 / 4096
LINE_HEIGHT = 8


NONE: Mapping[int, float] = MappingProxyType({})


class Look(msgspec.Struct, frozen=True):
    """How a person looks at a chart. `window` and `cursor` are values of the x axis (steps, or wall seconds)."""

    by_time: bool = False
    log: bool = False
    window: tuple[float, float] | None = None
    cursor: float | None = None

    def zoomed(self, factor: float, whole: tuple[float, float]) -> Look:
        """The window `factor` times as wide, about the cursor or the newest end."""
        low, high = self.window or whole
        span = whole[1] - whole[0]
        size = min(max((high - low) * factor, span * ZOOM_LEAST), span)
        if size >= span:
            return replace(self, window=None)
        at = self.cursor if self.cursor is not None else high
        share = (at - low) / (high - low) if high > low else 0.5
        start = min(max(at - share * size, whole[0]), whole[1] - size)
        return replace(self, window=(start, start + size))

    def panned(self, share: float, whole: tuple[float, float]) -> Look:
        """The window moved by a share of its width, within the whole."""
        if self.window is None:
            return self
        size = self.window[1] - self.window[0]
        start = min(max(self.window[0] + share * size, whole[0]), whole[1] - size)
        return replace(self, window=(start, start + size))

    def pointed(self, at: float | None, whole: tuple[float, float]) -> Look:
        """The cursor at a value; the window follows it."""
        if at is None:
            return replace(self, cursor=None)
        at = min(max(at, whole[0]), whole[1])
        if self.window is None or self.window[0] <= at <= self.window[1]:
            return replace(self, cursor=at)
        size = self.window[1] - self.window[0]
        start = min(max(at - size / 2, whole[0]), whole[1] - size)
        return replace(self, cursor=at, window=(start, start + size))


class Curve(msgspec.Struct, frozen=True):
    """One series. `smoothed` belongs to `points`, one by one; empty: the means are drawn.

    `cuts`: attempt to the step from which on a later one did its work again. What lies there is drawn faint.
    """

    points: Track
    smoothed: tuple[float, ...] = ()
    style: TextStyle = TextStyle.LIVE
    cuts: Mapping[int, float] = NONE


class Mark(msgspec.Struct, frozen=True):
    """Something that happened: a rule behind the curves and a word below them. A step may be unknown."""

    step: float | None
    t: float
    text: str
    style: TextStyle


class Plot(NamedTuple):
    """What was drawn, and the scale of its x axis for what points at it. `left`: cells before the first column."""

    rows: list[Row]
    x: Scale
    left: int


def x_of(look: Look, tracks: Sequence[Track]) -> Callable[[Point], float]:
    """What a point's place is: its step, or its time where that is asked for or a step is missing."""
    if look.by_time or any(p.step is None for track in tracks for p in track):
        return _time
    return _step


def extent(look: Look, tracks: Sequence[Track]) -> tuple[float, float] | None:
    """The least and the greatest place; None without points."""
    place = x_of(look, tracks)
    if place is _time:  # the order in which points are kept
        values = [p.t for track in tracks for p in (*track[:1], *track[-1:])]
    else:
        values = [p.step or 0.0 for track in tracks for p in track]
    return (min(values), max(values)) if values else None


def nearest(look: Look, tracks: Sequence[Track], at: float) -> Point | None:
    """The point of the first track that is nearest to a place; of two attempts the newer one's."""
    place = x_of(look, tracks)
    points = tracks[0] if tracks else ()
    return min(points, key=lambda p: (abs(place(p) - at), -p.attempt), default=None)


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
    least_span: float = 0.0,
) -> Plot | None:
    """Curves with their axes in `height` rows; None where there is nothing to draw or no room.

    Args:
        curves: the later ones over the earlier ones.
        look: window, cursor, logarithm.
        width: cells.
        height: rows.
        marks: what happened.
        circles: single values, such as a validation loss.
        lost: points that were not finite: a cross at the upper edge.
        least_span: what the y axis spans at least, as a ratio of the greatest value.
        axis_cells: the least width of the y axis with its numbers, so that charts stand under one another.
    """
    tracks = [*(curve.points for curve in curves), lost]
    whole = extent(look, tracks)
    if whole is None or height < 3 or width < 20:
        return None
    place = x_of(look, tracks)
    low_x, high_x = look.window or whole
    shown = list(curves)
    if look.window is not None:
        shown = [_within(curve, place, low_x, high_x) for curve in curves]
    points = [p for curve in shown for p in curve.points]
    if not points:
        return None
    by_step = place is _step
    rows = height - 2 if height >= LINE_HEIGHT else height - 1
    y = _y_scale(points, shown, rows, log=look.log, least_span=least_span)
    names = _y_labels(y, rows)
    left = max(max((len(text) for text in names.values()), default=0) + 2, axis_cells)
    canvas = Canvas(width - left, rows)
    x = Scale(low_x, high_x, canvas.dot_columns)
    below = _marked(marks, x, by_step=by_step)
    for column, _, style in below:
        canvas.rule(column, "┊", style)
    for curve in shown:
        _draw(canvas, curve, place, x, y)
    cuts = shown[-1].cuts
    for point in circles:
        if place is _time or point.step is not None:
            style = TextStyle.STRONG if lives_on(point, cuts) else TextStyle.DIM
            canvas.mark(x.dot(place(point)) // 2, y.dot(point.mean) // 4, "○", style)
    for point in lost:
        if place is _time or point.step is not None:
            canvas.mark(x.dot(place(point)) // 2, 0, "×", TextStyle.BAD)
    if look.cursor is not None:
        _draw_cursor(canvas, look.cursor, x)
    return Plot(
        _with_axes(canvas, names, left, x, below, by_step=by_step, line=height >= LINE_HEIGHT), x, left
    )


def _within(curve: Curve, place: Callable[[Point], float], low: float, high: float) -> Curve:
    """The points in the window and one more on either side, so that lines reach its edges."""
    points = curve.points
    wanted = {
        near
        for at, point in enumerate(points)
        if low <= place(point) <= high
        for near in (at - 1, at, at + 1)
        if 0 <= near < len(points)
    }
    if len(wanted) == len(points):
        return curve
    chosen = sorted(wanted)
    smoothed = tuple(curve.smoothed[at] for at in chosen) if curve.smoothed else ()
    return replace(curve, points=tuple(points[at] for at in chosen), smoothed=smoothed)


def _y_scale(
    points: Sequence[Point], curves: Sequence[Curve], rows: int, *, log: bool, least_span: float
) -> Scale:
    smoothed = [value for curve in curves for value in curve.smoothed]
    low, high = loss_bounds(points, smoothed)
    missing = least_span * max(abs(low), abs(high)) - (high - low)
    if missing > 0:
        low, high = low - missing / 2, high + missing / 2
    least = min(p.low for p in points)
    if log and least > 0:
        low = max(low, least * 0.95)
        return Scale(low, max(high, low * 1.05), 4 * rows, flipped=True, log=True)
    return Scale(low, high, 4 * rows, flipped=True)


def _y_labels(y: Scale, rows: int) -> dict[int, str]:
    """Round numbers beside the rows, at most one in two rows."""
    found: dict[int, str] = {}
    values = (log_ticks if y.log else ticks)(y.low, y.high, max(3, rows // 2))
    for value, text in zip(values, labels(values), strict=True):
        found.setdefault(min(max(y.dot(value) // 4, 0), rows - 1), text)
    return found


def _draw(canvas: Canvas, curve: Curve, place: Callable[[Point], float], x: Scale, y: Scale) -> None:
    points, values = curve.points, curve.smoothed
    if curve.cuts:
        lives = [lives_on(point, curve.cuts) for point in points]
        if not all(lives):
            gone = [not alive for alive in lives]
            left = list(compress(points, gone))
            found = buckets(left, place, x, list(compress(values, gone)) if values else None)
            draw_line(canvas, canvas.layer(TextStyle.DIM), found, y)
            points, values = tuple(compress(points, lives)), tuple(compress(values, lives))
    if not points:
        return
    if values:
        draw_band(canvas, canvas.layer(TextStyle.DIM), buckets(points, place, x), y)
    draw_line(canvas, canvas.layer(curve.style), buckets(points, place, x, values or None), y)


def lives_on(point: Point, cuts: Mapping[int, float]) -> bool:
    """Whether no later attempt did a point's step again; one without a step is taken to live."""
    return point.step is None or point.step < cuts.get(point.attempt, math.inf)


def _draw_cursor(canvas: Canvas, at: float, x: Scale) -> None:
    column = min(max(x.dot(at) // 2, 0), canvas.columns - 1)
    for number in range(canvas.rows):
        canvas.under(column, number, "│", TextStyle.STRONG)


def _marked(marks: Sequence[Mark], x: Scale, *, by_step: bool) -> list[tuple[int, str, TextStyle]]:
    """Column, word and colour of the marks in sight."""
    found = []
    for mark in marks:
        at = mark.step if by_step else mark.t
        if at is not None and x.low <= at <= x.high:
            found.append((x.dot(at) // 2, mark.text, mark.style))
    return found


def _with_axes(
    canvas: Canvas,
    names: dict[int, str],
    left: int,
    x: Scale,
    below: list[tuple[int, str, TextStyle]],
    *,
    by_step: bool,
    line: bool,
) -> list[Row]:
    """The canvas between its numbers."""
    found: list[Row] = []
    for number, drawn in enumerate(canvas.drawn()):
        name = names.get(number, "")
        edge = "┤" if name else "│"
        found.append((Span(f"{name:>{left - 2}} {edge}", TextStyle.DIM), *drawn))
    stops = [(x.dot(v) // 2, fm.whole(v)) for v in ticks(x.low, x.high, max(2, canvas.columns // 10))]
    if not by_step:
        stops = [(x.dot(x.low) // 2, fm.time_of_day(x.low)), (canvas.columns - 1, fm.time_of_day(x.high))]
    taken = [*below, *((column, text, TextStyle.DIM) for column, text in stops)]
    if line:
        ticked = {column for column, _, _ in taken}
        edge = "".join("┴" if column in ticked else "─" for column in range(canvas.columns))
        found.append((Span(" " * (left - 1) + "└" + edge, TextStyle.DIM),))
    found.append((Span(" " * left), *_below(taken, canvas.columns)))
    return found


def _below(taken: list[tuple[int, str, TextStyle]], width: int) -> Row:
    """Texts under their columns; the first in the list wins where two would touch."""
    line: list[tuple[str, TextStyle]] = [(" ", TextStyle.DIM)] * width
    for column, text, style in taken:
        start = min(max(column - len(text) // 2, 0), max(width - len(text), 0))
        before, after = max(start - 1, 0), min(start + len(text) + 1, width)
        if len(text) <= width and all(character == " " for character, _ in line[before:after]):
            line[start : start + len(text)] = [(character, style) for character in text]
    return tuple(
        Span("".join([character for character, _ in run]), style)
        for style, run in groupby(line, itemgetter(1))
    )


def readout(look: Look, tracks: Sequence[Track], say: Callable[[float], str], tr: Tr = english) -> Row:
    """What the cursor reads: step, value (with its bounds where points were merged), time of day.

    Of an earlier attempt than the newest: which.
    """
    if look.cursor is None:
        return ()
    point = nearest(look, tracks, look.cursor)
    if point is None:
        return ()
    spread = (
        f" ({say(point.low)}…{say(point.high)})"
        if point.weight > 1 and not math.isclose(point.low, point.high)
        else ""
    )
    whose = tr(f"attempt {point.attempt}") + "  " if point.attempt != tracks[0][-1].attempt else ""
    step = tr(f"step {fm.whole(point.step)}  ") if point.step is not None else ""
    return (
        Span(f"{whose}{step}", TextStyle.DIM),
        Span(say(point.mean), TextStyle.STRONG),
        Span(f"{spread}  {fm.time_of_day(point.t)}", TextStyle.DIM),
    )


def _step(point: Point) -> float:
    return point.step or 0.0


def _time(point: Point) -> float:
    return point.t
