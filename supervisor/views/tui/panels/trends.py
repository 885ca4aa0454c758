"""The recent course of training: five numbers in one line, and curves of the most informative series if there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple, TypeAlias

from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.model.thinned_series import Track
from supervisor.views.tui.charts.curves import Curve, Look, axis_for, axis_word, plot
from supervisor.views.tui.charts.live import start_of
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row, spark
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


# -- curves ------------------------------------------------------------------------------------------

# The y axis spans at least this share of the greatest value, so that noise stays small.
LEAST_SPAN = 0.25
# The name for environment steps per second in reinforcement learning logs, shown under their own name.
FRAME_RATES = frozenset({"fps", "sps"})
# The width that a frame takes from its title row.
FRAME_CELLS = 8


class Trend(NamedTuple):
    """A series, its name, and the format of its values."""

    name: str
    track: Track
    say: Callable[[float | None], str]
    latest: float | None
    style: TextStyle = TextStyle.PACE
    odd: str = ""  # the word for the newest value if it is not finite


class TrendPanel(Panel):
    """One series over steps. `place`: 0 for the most informative one, 1 for the next, and so on."""

    def __init__(self, *, id: str, place: int) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._place = place

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The charted series, and the attempts."""
        trend = self._trend(snapshot)
        return (trend.track if trend is not None else None, snapshot.state.attempts, trend and trend.odd)

    def titles(self) -> tuple[Row, Row]:
        """The charted series and its newest value."""
        trend = self._trend(self.view.snapshot) if self.view is not None else None
        if trend is None:
            return EMPTY, EMPTY
        name = row(Span(self.tr(trend.name), TextStyle.STRONG))
        newest = row(Span(trend.say(trend.latest), trend.style))
        if trend.odd:
            newest = row(Span(self.tr(trend.odd), TextStyle.BAD))
        word = axis_word(axis_for(None, [trend.track]))
        by = Span(f" {self.tr(word)}" if word else "", TextStyle.DIM)
        has_room = cells((*name, by, *newest)) + FRAME_CELLS <= self.size.width
        return (*name, by) if has_room else name, newest

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The chart."""
        assert self.view is not None
        snapshot = self.view.snapshot
        trend, drawn = self._trend(snapshot), None
        if trend is not None:
            curve = Curve(trend.track, style=trend.style, cuts=snapshot.state.cuts)
            start_t = start_of(snapshot.state, snapshot.series.values())
            drawn = plot([curve], Look(), width, height, least_span=LEAST_SPAN, start_t=start_t)
        if drawn is None:
            return [row(Span(fit(self.tr("no reading yet"), width), TextStyle.DIM))]
        return drawn.rows

    def _trend(self, snapshot: Snapshot) -> Trend | None:
        return next((trend for at, trend in enumerate(trends(snapshot)) if at == self._place), None)


def trends(snapshot: Snapshot) -> Iterator[Trend]:
    """The series with a curve, the most informative first; the rate per second is shown once."""
    metrics = snapshot.metrics
    took_s, is_derived = snapshot.step_time_s
    whole = snapshot.series
    logged, logged_s = whole.get("step_time_s", ()), snapshot.latest("step_time_s")
    (epochs, epochs_derived), (epoch_s, _) = snapshot.epoch_times, snapshot.epoch_time_s
    fast = "tokens_per_sec" if len(whole.get("tokens_per_sec", ())) > 1 else "samples_per_sec"
    vals = metrics["val_loss"]
    frames = [name for name in whole if name.rsplit("/", 1)[-1].lower() in FRAME_RATES]
    known = [
        *(Trend(name, whole[name], fm.short, whole[name][-1].mean) for name in frames[:1] if whole[name]),
        Trend(RATES[fast], whole.get(fast, ()), fm.short, snapshot.latest(fast)),
        Trend(
            "grad norm",
            metrics["grad_norm"],
            fm.short,
            snapshot.latest("grad_norm"),
            TextStyle.PLAIN,
            snapshot.not_finite("grad_norm"),
        ),
        # Logged series start at the first step; the pace has only the newest gaps.
        Trend("logged step time" if is_derived else "step time", logged, fm.seconds, logged_s)
        if logged and logged_s is not None
        else Trend("step time", snapshot.gaps, fm.about(fm.seconds), took_s),
        Trend("epoch time", epochs, fm.about(fm.seconds) if epochs_derived else fm.seconds, epoch_s),
        Trend("val loss", vals, fm.loss, vals[-1].mean if vals else None, TextStyle.LOSS),
        Trend("lr", metrics["lr"], fm.rate, snapshot.latest("lr"), TextStyle.PLAIN),
    ]
    return (trend for trend in known if len(trend.track) > 1)
