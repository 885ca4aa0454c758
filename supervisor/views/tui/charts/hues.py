"""Which colour a value or a series has: thresholds of gauges, and the hue of each kind of series (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from string import ascii_lowercase
from typing import Final, NamedTuple

from supervisor.views.tui.widgets.paint import TextStyle


class Gauge(StrEnum):
    """A ratio with a good and a bad end."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"


class Limits(NamedTuple):
    """From where on a ratio is amber, and red. Red below amber: the low end is the bad one."""

    amber: float
    red: float


LIMITS: Final[Mapping[Gauge, Limits]] = {
    # A GPU that waits is wasted: below 70 % something else sets the pace, below 30 % it mostly idles.
    Gauge.GPU: Limits(0.7, 0.3),
    # Cores that are all busy keep data workers and the launching of kernels waiting.
    Gauge.CPU: Limits(0.9, 0.98),
    # From 95 % on a fragmented allocator, or one longer sequence, is out of memory.
    Gauge.MEMORY: Limits(0.85, 0.95),
}
# Runs that are laid beside one another, this one first.
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
    """Green, amber or red by `LIMITS`; dim where the ratio is not known."""
    if ratio is None:
        return TextStyle.DIM
    amber, red = LIMITS[gauge]
    sign = 1 if red >= amber else -1
    if sign * ratio >= sign * red:
        return TextStyle.BAD
    return TextStyle.WARN if sign * ratio >= sign * amber else TextStyle.LIVE


def band_style(name: str) -> TextStyle:
    """The range of a series' values, behind its smoothed curve: a weaker accent for losses, a neutral one for all else."""
    return TextStyle.BAND if series_style(name) is TextStyle.LOSS else TextStyle.FRAME


def run_style(at: int) -> TextStyle:
    """The hue of one of several runs in a chart. A seventh has the second one's and its own letter; the first one's is its alone."""
    return _RUN_STYLES[at if at < len(_RUN_STYLES) else 1 + (at - 1) % (len(_RUN_STYLES) - 1)]


def run_letter(at: int) -> str:
    """What its curve is marked with: colour is never the only sign."""
    return ascii_lowercase[at % len(ascii_lowercase)]


def series_style(name: str) -> TextStyle:
    """The accent for losses, the second hue for speed and time, the foreground for all else."""
    if _LOSS.search(name):
        return TextStyle.LOSS
    return TextStyle.PACE if _PACE.search(name) else TextStyle.PLAIN
