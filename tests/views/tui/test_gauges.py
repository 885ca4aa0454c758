"""What the machine is used for: the colour of a reading, a device's row, and the chart of the last minutes; without an app."""

from __future__ import annotations

import pytest

from supervisor.views.tui.charts.hues import (
    Gauge,
    band_style,
    run_letter,
    run_style,
    series_style,
    value_style,
)
from supervisor.views.tui.widgets.paint import TextStyle

pytestmark = pytest.mark.usefixtures("no_app")

GIB = 2.0**30
DIM, LIVE, WARN, BAD, PLAIN = (
    TextStyle.DIM,
    TextStyle.LIVE,
    TextStyle.WARN,
    TextStyle.BAD,
    TextStyle.PLAIN,
)


@pytest.mark.parametrize(
    ("gauge", "ratios"),
    [
        (Gauge.GPU, (0.71, 0.7, 0.31, 0.3)),
        (Gauge.CPU, (0.89, 0.9, 0.97, 0.98)),
        (Gauge.MEMORY, (0.84, 0.85, 0.94, 0.95)),
    ],
)
def test_where_amber_and_red_begin(gauge: Gauge, ratios: tuple[float, ...]) -> None:
    assert [value_style(gauge, ratio) for ratio in ratios] == [LIVE, WARN, WARN, BAD]
    assert value_style(gauge, None) is DIM


def test_a_series_and_a_run_keep_their_hue() -> None:
    hues = [TextStyle.PACE, TextStyle.THIRD, TextStyle.FOURTH, TextStyle.FIFTH, TextStyle.SIXTH]
    assert [run_style(at) for at in range(12)] == [TextStyle.LOSS, *hues, *hues, TextStyle.PACE]
    assert [run_letter(at) for at in (0, 25, 26)] == ["a", "z", "a"]
    assert {series_style(name) for name in ("val_loss", "perplexity", "val_ppl")} == {TextStyle.LOSS}
    assert {series_style(name) for name in ("tokens_per_sec", "epoch_time_s", "mfu")} == {TextStyle.PACE}
    assert series_style("lr") is PLAIN
    assert (band_style("loss"), band_style("lr")) == (TextStyle.BAND, TextStyle.FRAME)
