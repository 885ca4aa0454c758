"""The recent course of training: five numbers in one line, each with its newest values as a spark line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TypeAlias

from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.model.thinned_series import Track
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, cells, spark
from supervisor.views.tui.widgets.panel import Panel

Pick: TypeAlias = Callable[[Sequence[float]], float]
Tile: TypeAlias = tuple[str, str, TextStyle, list[float], Pick]
RECENT = 120
RATES = {"tokens_per_sec": "tok/s", "samples_per_sec": "smp/s"}
WAIT_WARN_RATIO = 0.1
# The others are speeds and times.
LINES = {"lr": TextStyle.DIM, "grad": TextStyle.DIM}


class TilesPanel(Panel):
    """One line: lr, throughput, gradient norm, step time, data wait."""

    framed = False

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The five series, and their attempt."""
        names = ("lr", "tokens_per_sec", "samples_per_sec", "grad_norm", "step_time_s", "data_wait_s")
        return (
            *(snapshot.metrics[name] for name in names),
            snapshot.pace,
            snapshot.series.get("epoch_time_s"),
            snapshot.metrics["loss"],
            snapshot.odd,
            len(snapshot.state.attempts),
        )

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The line; tiles that do not fit are dropped from the end."""
        if self.view is None or height < 1:
            return []
        every = _tiles(self.view.snapshot)
        tiles = [tile for tile in every if tile[3]] or every  # never logged: takes no room
        shown = max(1, min(len(tiles), width // 20))
        size = width // shown
        spans: list[Span] = []
        for label, text, style, values, pick in tiles[:shown]:
            tile = (Span(f" {self.tr(label)} ", TextStyle.DIM), Span(text, style), Span(" "))
            room = size - cells(tile) - 1
            spans += [
                *tile,
                Span(spark(values, max(room, 0), pick=pick), LINES.get(label, TextStyle.PACE)),
                Span(" "),
            ]
        return [tuple(spans)]


def _tiles(snapshot: Snapshot) -> list[Tile]:
    metrics = snapshot.metrics
    waited = snapshot.latest("data_wait_s")
    took, is_derived = snapshot.step_time_s
    share = waited / took if waited is not None and took else None
    wait_ink = TextStyle.WARN if share is not None and share > WAIT_WARN_RATIO else _ink(share)
    waits = _values(metrics["data_wait_s"])
    gaps = snapshot.gaps if is_derived else metrics["step_time_s"]
    pace = _tile("step", took, fm.about(fm.seconds) if is_derived else fm.seconds, gaps, 6 + is_derived)
    epoch_s, _ = snapshot.epoch_time_s
    if epoch_s is not None:
        times, _ = snapshot.epoch_times
        pace = _tile("speed", epoch_s, lambda _: epoch_time_text(snapshot), times, 0)
    return [
        _tile("lr", snapshot.latest("lr"), fm.rate, metrics["lr"], 7),
        _throughput(snapshot, took if is_derived else None),
        _tile(
            "grad",
            snapshot.latest("grad_norm"),
            lambda v: snapshot.not_finite("grad_norm") or (fm.DASH if v is None else f"{v:.2f}"),
            metrics["grad_norm"],
            4,
            max,
        ),
        pace,
        ("data wait", (fm.DASH if share is None else fm.percent(share)).rjust(4), wait_ink, waits, fmean),
    ]


def epoch_time_text(snapshot: Snapshot) -> str:
    """The duration of an epoch, if the step time is unknown; empty if both are."""
    took_s, is_derived = snapshot.epoch_time_s
    return (
        f"{(fm.about(fm.seconds) if is_derived else fm.seconds)(took_s)}/epoch" if took_s is not None else ""
    )


def _throughput(snapshot: Snapshot, derived_s: float | None) -> Tile:
    """Tokens or samples per second from the log; steps per second if it has neither and no time."""
    for name, label in RATES.items():
        if snapshot.metrics[name]:
            return _tile(label, snapshot.latest(name), fm.short, snapshot.metrics[name], 5)
    if not derived_s:
        return _tile("smp/s", None, fm.short, (), 5)
    rates = [1 / point.mean for point in snapshot.gaps if point.mean > 0]
    return "steps/s", fm.about(fm.short)(1 / derived_s).rjust(6), TextStyle.STRONG, rates[-RECENT:], fmean


def _tile(
    label: str,
    value: float | None,
    text_of: Callable[[float | None], str],
    track: Track,
    width: int,
    pick: Pick = fmean,
) -> Tile:
    return label, text_of(value).rjust(width), _ink(value), _values(track), pick


def _ink(value: float | None) -> TextStyle:
    """An unknown value is dimmed."""
    return TextStyle.DIM if value is None else TextStyle.STRONG


def _values(track: Track) -> list[float]:
    return [point.mean for point in track[-RECENT:]]
