"""What the machine is used for: the colour of a reading, a device's row, and the chart of the last minutes; without an app."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.views.model.snapshot import Gpu, Machine, Rank
from supervisor.views.model.thinned_series import single
from supervisor.views.tui.charts.hues import (
    Gauge,
    band_style,
    run_letter,
    run_style,
    series_style,
    value_style,
)
from supervisor.views.tui.charts.live import UsePanel
from supervisor.views.tui.panels.devices import DevicesPanel
from supervisor.views.tui.widgets.paint import Span, TextStyle
from supervisor.views.tui.widgets.panel import View
from tests.views.tui.still import drawn, gpu_of, snapshot_of, state_of, text_of, track

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


ENDED = st.Finished(outcome=Outcome.STOPPED, exit_code=0, reason="")
HALF = track(0.5, 0.75)
HOST = Machine(1.0, {"memory_total_bytes": 32 * GIB}, track(0.95, 0.97), track(8 * GIB, 16 * GIB))
ONE, TWO = Rank("0", 0.0, None, None, {}, track(0.5, 2.5), ()), Rank("1", 0.0, None, None, {}, HALF, ())


def cards(*gib: int) -> tuple[Gpu, ...]:
    return tuple(gpu_of(at, memory_total_bytes=size * GIB) for at, size in enumerate(gib))


@pytest.mark.parametrize(
    ("values", "memory", "what", "newest"),
    [
        ({"gpus": cards(80), "gpu_util": HALF}, False, "GPU", Span("75 %", LIVE)),
        ({"gpus": cards(80, 80), "gpu_memory": HALF}, True, "memory", Span("60.0G", LIVE)),
        ({"gpus": cards(80, 40), "gpu_memory": HALF}, True, "memory", Span("75 %", LIVE)),
        ({"machine": HOST}, False, "CPU", Span("97 %", WARN)),
        ({"machine": HOST}, True, "RAM", Span("16.0G", LIVE)),
        ({"ranks": {"0": ONE, "1": TWO}}, False, "CPU", Span("250 %", PLAIN)),
        ({}, False, "CPU", None),
        ({}, True, "RAM", None),
        ({"machine": Machine(1.0, {}, (), HALF)}, True, "RAM", None),
    ],
)
def test_what_is_charted_of_all_devices(
    values: dict[str, Any], memory: bool, what: str, newest: Span | None
) -> None:
    panel = UsePanel(id="use", memory=memory)
    assert panel.titles() == ((), ())
    panel.view = View(snapshot_of(state_of(), **values), 10.9)
    left, right = panel.titles()
    assert left == (Span(what, TextStyle.STRONG), Span("", DIM))
    assert right == (() if newest is None else (newest, Span("", WARN)))
    assert (text_of(panel.body(20, 3)) == "no reading yet      ") is (newest is None)
    panel.view = View(snapshot_of(state_of(), **values), 11.0)
    stale = panel.titles()[1]
    assert stale == (() if newest is None else (Span(newest.text, DIM), Span("  10 s ⚠", WARN)))
    over = snapshot_of(state_of(ENDED), **values)
    panel.view = View(over, 99.0)
    assert panel.titles()[1] == right, "no reading is due any more"


def test_a_chart_of_use_has_ten_minutes_and_at_least_one() -> None:
    young = (single(0.0, None, 0.2, 1), single(15.0, None, 0.6, 1), single(30.0, None, 2.0, 1))
    old = (single(0.0, None, 2.0, 1), single(1000.0, None, 0.2, 1), single(1600.0, None, 0.6, 1))
    panel = UsePanel(id="use", memory=False)

    def chart(points: tuple[Any, ...]) -> list[str]:
        return drawn(panel, snapshot_of(state_of(), gpus=cards(80), gpu_util=points), 15, 3).splitlines()

    assert chart(young) == ["200%┤       ⢸⣿⣿", "    │       ⢸⣿⣿", "  0%┤     ⣼⣿⣿⣿⣿"]
    assert chart(old) == ["100%┤          ", "    │⢸⣿⣿⣿⣿⣿⣿⣿⣿⣿", "  0%┤⣾⣿⣿⣿⣿⣿⣿⣿⣿⣿"]


READ: dict[str, float | None] = {
    "util_ratio": 0.97,
    "memory_used_bytes": 60 * GIB,
    "memory_total_bytes": 80 * GIB,
    "temperature_c": 64.0,
    "power_w": 612.0,
    "sm_clock_mhz": 1980.0,
    "throttle": 0.0,
}
BOX: dict[str, float | None] = {
    "cpu_ratio": 0.6,
    "memory_used_bytes": 11.4 * GIB,
    "memory_total_bytes": 32 * GIB,
    "load1": 3.2,
    "shm_used_ratio": 0.08,
    "disk_used_ratio": 0.95,
    "stoker_cpu_ratio": 0.012,
    "stoker_rss_bytes": 120 * 2.0**20,
}


def card(index: int, **values: float | None) -> Gpu:
    return Gpu(index, 1.0, values, track(*[0.1, 0.5, 0.9] * 30), ())


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (120,
            "GPU 0    97 % ▁▁▁▁▄▁▁▁▁▁▄▁▁▁▁▁▄▁▁▁▁▁▄▁  60.0/80 GiB ━━━━━━━━━━━━────     64 °C   612 W   1980 MHz             "),
        (80, "GPU 0    97 % ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  60.0/80 GiB ━━━━━━──     64 °C   612 W   1980 MHz"),
        (60, "GPU 0    97 % ▁▁▁▁▁▁  60.0/80 GiB ━━━━━━──     64 °C   612 W"),
        (50, "GPU 0    97 % ▁▁▁▁▁▁  60.0/80 GiB ━━━━━━──   612 W"),
        (40, "GPU 0    97 % ▁▁▁▁  60.0/80 GiB ━━━━━━──"),
        (30, "GPU 0    97 %   60.0/80 GiB"),
    ],
)  # fmt: skip
def test_a_row_of_a_gpu_loses_what_matters_least(width: int, row: str) -> None:
    panel = DevicesPanel(id="devices")
    assert drawn(panel, snapshot_of(state_of(), gpus=(card(0, **READ),)), width) == row
    assert text_of([panel.titles()[0]]) == "GPUs · 1"


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ({"throttle": 32.0}, "⚠  64 °C   612 W   1980 MHz  thermal    "),
        ({"throttle": 64.0}, "⚠  64 °C   612 W   1980 MHz  thermal    "),
        ({"throttle": 128.0}, "⚠  64 °C   612 W   1980 MHz  power brake"),
        ({"throttle": 8.0}, "⚠  64 °C   612 W   1980 MHz  hw slow    "),
        ({"throttle": 4.0}, "━━────     64 °C   612 W   1980 MHz             "),
        ({"lost": 1.0}, "━━────  ✗ lost     64 °C   612 W   1980 MHz             "),
    ],
)
def test_a_gpu_that_protects_itself_or_is_lost_says_so(values: dict[str, float], end: str) -> None:
    gpus = (card(0, **(READ | values)),)
    assert drawn(DevicesPanel(id="devices"), snapshot_of(state_of(), gpus=gpus), 120).endswith(end)


def test_a_machine_without_gpus_has_its_own_row() -> None:
    panel = DevicesPanel(id="devices")
    box = snapshot_of(state_of(), machine=Machine(1.0, BOX, track(0.5, 0.6, 0.7), ()))
    whole = (
        "host     60 %                      ▄▅▅  11.4/32 GiB ━━━━━╸──────────"
        "  disk  95 %  shm   8 %  stoker  1.2 % 120M  load  3.2"
    )
    assert drawn(panel, box, 140) == whole
    assert text_of([panel.titles()[0]]) == "machine"
    narrow = "host     60 %        ▄▅▅  11.4/32 GiB ━━━─────  disk  95 %  shm   8 %  load  3.2"
    assert drawn(panel, box, 80) == narrow
    panel.framed = False
    assert drawn(panel, box, 82) == f" {narrow}"
    assert drawn(panel, snapshot_of(state_of())) == " no reading yet"
