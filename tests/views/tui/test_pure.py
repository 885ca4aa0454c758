"""The pure parts of the screen: rows, canvases, ticks, the log's buffer, the layout."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from supervisor.views.model.thinned_series import single
from supervisor.views.tui.charts.braille import Canvas, Scale, buckets, labels, loss_bounds, ticks
from supervisor.views.tui.widgets.paint import (
    Span,
    TextStyle,
    bar,
    cells,
    spark,
)
from supervisor.views.tui.widgets.panel import to_strip

STYLES = {style: Style() for style in TextStyle}
texts = st.text(st.characters(exclude_categories=["Co", "Cs"]), max_size=40)


@given(texts, st.integers(1, 60))
def test_strips_have_their_width_and_no_control_characters(text: str, width: int) -> None:
    strip = to_strip((Span(text), Span("x", TextStyle.BAD)), width, STYLES)
    assert strip.cell_length == width
    assert strip.text.isprintable()


@given(st.one_of(st.none(), st.floats(-1, 2)), st.integers(0, 40))
def test_bars_fill_their_width(ratio: float | None, width: int) -> None:
    assert cells(bar(ratio, width, TextStyle.LIVE)) == width


@given(st.lists(st.floats(-1e9, 1e9), max_size=80), st.integers(0, 30))
def test_sparks_fill_their_width(values: list[float], width: int) -> None:
    assert len(spark(values, width)) == width


@given(st.integers(1, 30), st.integers(1, 8), st.integers(-5, 70), st.integers(-9, 40), st.integers(-9, 40))
def test_canvas_clips(columns: int, rows: int, x: int, y0: int, y1: int) -> None:
    canvas = Canvas(columns, rows)
    layer = canvas.layer(TextStyle.LIVE)
    canvas.line(layer, 0, 0, x, y1)
    canvas.span(layer, x, y0, y1)
    assert [cells(drawn) for drawn in canvas.drawn()] == [columns] * rows


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12))
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most)
    assert len(found) <= most + 1
    near = 1e-6 * span + 4 * math.ulp(abs(low) + span)  # what floats of this size can tell apart
    assert all(low - near <= value <= low + span + near for value in found)
    assert len(labels(found)) == len(found)


def test_buckets_keep_extremes() -> None:
    points = [single(i, i, 100.0 if i == 500 else 1.0, 1) for i in range(1000)]
    scale = Scale(0, 999, 50)
    found = buckets(points, [p.step or 0.0 for p in points], scale)
    assert len(found) == 50
    assert max(b.high for b in found) == 100.0
    low, high = loss_bounds(points, [1.0] * 1000, log=False)
    assert high < 100, "one wild value does not press the curve flat"
    assert low < 1
