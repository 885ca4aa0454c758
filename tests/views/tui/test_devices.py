"""The lines of the devices pane: which parts are shown, in how many cells, and in which colour."""

from __future__ import annotations

import math

import pytest

from supervisor.views.model.snapshot import Gpu
from supervisor.views.tui.charts.hues import Gauge
from supervisor.views.tui.panels import devices as module
from supervisor.views.tui.panels.devices import FULL_RATIO
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle

GIB = 2.0**30


def gpu(**values: float | None) -> Gpu:
    return Gpu(0, 1.0, values, (), ())


@pytest.mark.parametrize(
    ("others", "pid", "own", "shown"),
    [
        (5 * GIB, 4711.0, GIB, "⚠ 5.0G pid 4711"),
        (None, 4711.0, GIB, ""),
        (0.0, 4711.0, GIB, ""),
        (5 * GIB, None, GIB, ""),
        (5 * GIB, 4711.0, None, ""),
        (5 * GIB, 4711.0, 0.0, ""),
    ],
)
def test_others_are_named_where_they_and_the_run_use_a_gpu(
    others: float | None, pid: float | None, own: float | None, shown: str
) -> None:
    device = gpu(others_memory_bytes=others, others_pid=pid, own_memory_bytes=own)
    assert module._others_text(device) == shown
    assert module._others(device) == (others if shown else None)


@pytest.mark.parametrize(
    ("bits", "word"),
    [
        (None, ""),
        (0.0, ""),
        (math.nan, ""),
        (float(0x20), "thermal"),
        (float(0x40), "thermal"),
        (float(0x08), "hw slow"),
        (float(0x80), "power brake"),
        (float(0x88), "power brake"),
        (float(0x04), ""),  # the power cap is every busy GPU's
    ],
)
def test_what_slows_a_gpu(bits: float | None, word: str) -> None:
    assert module._throttle(bits) == word


def line(width: int, *, used: float | None = GIB, total: float | None = 2 * GIB, extras: int = 2) -> Row:
    full = used / total if used is not None and total else None
    more = [Span(f"extra {number}", TextStyle.DIM) for number in range(extras)]
    return module._device("GPU 0", 0.5, (), (used, total, full), more, width, Gauge.GPU)


def text(row: Row) -> str:
    return "".join(span.text for span in row)


@pytest.mark.parametrize(("ratio", "is_bad"), [(FULL_RATIO - 0.01, False), (FULL_RATIO, True), (0.5, False)])
def test_memory_that_is_nearly_full_is_red(ratio: float, is_bad: bool) -> None:
    row = line(100, used=100 * ratio * GIB, total=100 * GIB)
    assert any(span.style is TextStyle.BAD for span in row) is is_bad


def test_without_a_total_there_is_no_bar() -> None:
    assert "GiB" in text(line(100, total=None))
    assert "1.0/2 GiB" in text(line(100))
    assert len(text(line(100, total=None)).rstrip()) < len(text(line(100)).rstrip())
