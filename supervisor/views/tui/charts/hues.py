"""Colors for values and series: gauge thresholds and a hue for each kind of series (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from string import ascii_lowercase
from typing import Final, NamedTuple

from supervisor.views.tui.widgets.paint import TextStyle


class Gauge(StrEnum):
    """A ratio that is good at one extreme and bad at the other."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"


class Limits(NamedTuple):
    """The ratios at which amber and red begin. If red is below amber, low values are bad."""

    amber: float
    red: float


LIMITS: Final[Mapping[Gauge, Limits]] = {
    # A waiting GPU is wasted. Below 70 % something else sets the pace, and below 30 % the GPU is mostly idle.
    Gauge.GPU: Limits(0.7, 0.3),
    # If all cores are busy, data workers and kernel launches have to wait.
    Gauge.CPU: Limits(0.9, 0.98),
    # From 95 % on, a fragmented allocator or one longer sequence runs out of memory.
    Gauge.MEMORY: Limits(0.85, 0.95),
}
# Hues of the runs compared in one chart, this run first.
_RUN_STYLES: Final = (
    TextStyle.LOSS,
    TextStyle.PACE,
    TextStyle.THIRD,
    TextStyle.FOURTH,
    TextStyle.FIFTH,
    TextStyle.SIXTH,
)
_LOSS: Final = re.compile("loss|perplexity|ppl$")
_PACE: Final = re.compile(r"per_sec|_s$|_ms$|time|speed|throughput|mfu|samples/s|tok/s")


def value_style(gauge: Gauge, ratio: float | None) -> TextStyle:
    """Return green, amber or red according to `LIMITS`, or dim if the ratio is unknown."""
    if ratio is None:
        return TextStyle.DIM
    amber, red = LIMITS[gauge]
    sign = 1 if red >= amber else -1
    if sign * ratio >= sign * red:
        return TextStyle.BAD
    return TextStyle.WARN if sign * ratio >= sign * amber else TextStyle.LIVE


def band_style(name: str) -> TextStyle:
    """Return the style for the range behind a smoothed curve: a muted accent for losses, otherwise neutral."""
    return TextStyle.BAND if series_style(name) is TextStyle.LOSS else TextStyle.FRAME


def run_style(at: int) -> TextStyle:
    """Return a run's chart color. Only the first run's color is unique; the seventh run reuses the second run's color."""
    return _RUN_STYLES[at if at < len(_RUN_STYLES) else 1 + (at - 1) % (len(_RUN_STYLES) - 1)]


def run_letter(at: int) -> str:
    """Return the letter that labels a run's curve, so that color is never the only cue."""
    return ascii_lowercase[at % len(ascii_lowercase)]


def series_style(name: str) -> TextStyle:
    """Return the style for a series: the accent for losses, the second hue for speed and time, else the foreground."""
    if _LOSS.search(name):
        return TextStyle.LOSS
    return TextStyle.PACE if _PACE.search(name) else TextStyle.PLAIN
