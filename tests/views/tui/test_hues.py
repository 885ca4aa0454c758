"""Which colour a value has, and a series."""

from __future__ import annotations

import pytest

from supervisor.views.tui.charts.braille import Bucket, Canvas, Scale, draw_area
from supervisor.views.tui.charts.hues import Gauge, value_style
from supervisor.views.tui.widgets.paint import Span, TextStyle

GREEN, AMBER, RED = TextStyle.LIVE, TextStyle.WARN, TextStyle.BAD


@pytest.mark.parametrize(
    ("gauge", "low", "middle", "high"),
    [
        (Gauge.GPU, RED, AMBER, GREEN),
        (Gauge.CPU, GREEN, AMBER, RED),
        (Gauge.MEMORY, GREEN, AMBER, RED),
    ],
)
def test_an_idle_gpu_is_as_bad_as_a_full_memory(
    gauge: Gauge, low: TextStyle, middle: TextStyle, high: TextStyle
) -> None:
    between = {Gauge.GPU: 0.5, Gauge.CPU: 0.95, Gauge.MEMORY: 0.9}[gauge]
    assert [value_style(gauge, ratio) for ratio in (0.0, between, 1.0)] == [low, middle, high]
    assert value_style(gauge, None) is TextStyle.DIM


def test_a_column_of_an_area_has_the_style_of_its_value() -> None:
    canvas = Canvas(2, 1)
    found = [Bucket(at, value, value, value, 1) for at, value in enumerate((0.0, 0.0, 3.0, 3.0))]
    draw_area(canvas, found, Scale(0, 3, 4, flipped=True), lambda v: GREEN if v > 1 else RED)
    assert canvas.drawn() == [(Span("⣀", RED), Span("⣿", GREEN))]
