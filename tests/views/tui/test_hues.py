"""Which colour a value has, and a series."""

from __future__ import annotations

from statistics import fmean

import pytest

from supervisor.views.tui.charts.canvas import Canvas
from supervisor.views.tui.charts.hues import Gauge, series_style, value_style
from supervisor.views.tui.charts.plotting import Bucket, Scale, draw_area
from supervisor.views.tui.widgets.paint import Span, TextStyle, spark, spark_row

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


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("loss", TextStyle.LOSS),
        ("val_loss", TextStyle.LOSS),
        ("tokens_per_sec", TextStyle.PACE),
        ("step_time_s", TextStyle.PACE),
        ("mfu", TextStyle.PACE),
        ("lr", TextStyle.PLAIN),
        ("grad_norm", TextStyle.PLAIN),
        ("accuracy", TextStyle.PLAIN),
    ],
)
def test_losses_have_the_accent_and_speeds_the_second_hue(name: str, style: TextStyle) -> None:
    assert series_style(name) is style


def test_each_cell_of_a_spark_has_the_style_of_its_own_value() -> None:
    values = [0.1, 0.1, 0.9, 0.9]
    found = spark_row(values, 3, lambda v: GREEN if v > 0.5 else RED, 0.0, 1.0)
    assert "".join(span.text for span in found) == spark(values, 3, 0.0, 1.0, fmean)
    assert [span.style for span in found] == [RED, GREEN]
    assert spark_row([], 3, lambda _: RED) == (Span("   ", TextStyle.PLAIN),)


def test_a_column_of_an_area_has_the_style_of_its_value() -> None:
    canvas = Canvas(2, 1)
    found = [Bucket(at, value, value, value, 1) for at, value in enumerate((0.0, 0.0, 3.0, 3.0))]
    draw_area(canvas, found, Scale(0, 3, 4, flipped=True), lambda v: GREEN if v > 1 else RED)
    assert canvas.drawn() == [(Span("⣀", RED), Span("⣿", GREEN))]
