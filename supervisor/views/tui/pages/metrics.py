"""The metrics page: any series, several at once under one another, beside those of another run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from supervisor.run.index import find_run
from supervisor.run.paths import RunPaths
from supervisor.views import format as fm
from supervisor.views.model.history import Track, smooth
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.axes import Axis, axis_for
from supervisor.views.tui.charts.curves import (
    NONE,
    SMOOTHING,
    Curve,
    Look,
    Plot,
    axis_word,
    extent,
    plot,
    readout,
)
from supervisor.views.tui.charts.hues import series_style
from supervisor.views.tui.charts.live import attempt_marks
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, between, fit, padded, row, spark

LIST_CELLS = 34
# Below this width the list is left out while a chart is looked at.
LIST_FROM = 90
NAME_CELLS = 17
VALUE_CELLS = 8
AXIS_CELLS = 9  # "2.0e-05" and its tick
CHART_LEAST = 7
# A moving mean of fewer points lags behind what it should show.
SMOOTH_FROM = 60
# What is set and not measured has no noise to smooth.
EXACT = frozenset(["lr", "learning_rate"])
FIRST = (
    "loss",
    "val_loss",
    "lr",
    "grad_norm",
    "tokens_per_sec",
    "samples_per_sec",
    "step_time_s",
    "data_wait_s",
    "mfu",
)
CHOSEN_AT_FIRST = 3

Say: TypeAlias = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run that is laid beside this one. `cuts`: see `curves.Curve`."""

    run_id: str
    series: Mapping[str, Track]
    cuts: Mapping[int, float]


class MetricsPage(ChartPanel):
    """A list of all series; those that are chosen are drawn, with one axis of steps (or time) for all of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            b
            for b in ChartPanel.BINDINGS
            if isinstance(b, Binding) and b.action not in {"zoom_in", "zoom_out"}
        ),
        Binding("plus,equals_sign", "zoom_in", "zoom in", show=False),
        Binding("minus", "zoom_out", "zoom out", show=False),
        Binding("j,down", "move(1)", "next series", show=False),
        Binding("k,up", "move(-1)", "previous series", show=False),
        Binding("space", "choose_series", "draw it, or not", show=False),
        Binding("o", "only", "draw this one alone, or the first three", show=False),
        Binding("c", "screen.compare", "another run beside it", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.other: OtherRun | None = None
        self._chosen: list[str] | None = None
        self._at = 0

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """All series: a new snapshot."""
        return (snapshot,)

    def names(self) -> list[str]:
        """All series, the usual ones first."""
        series = self.view.snapshot.series if self.view is not None else {}
        found = set(series) | set(self.other.series if self.other else ())
        return [name for name in FIRST if name in found] + sorted(found - set(FIRST))

    @property
    def chosen(self) -> list[str]:
        """What is drawn, in the list's order."""
        names = self.names()
        wanted = names[:CHOSEN_AT_FIRST] if self._chosen is None else self._chosen
        return [name for name in names if name in wanted]

    def tracks(self) -> Sequence[Track]:
        """What is drawn: of both runs."""
        found = []
        for name in self.chosen:
            found += [track for track in self._both(name) if track]
        return found

    def compare_with(self, other: OtherRun | None) -> None:
        """Lay another run beside this one; None takes it away."""
        self.other = other
        self.repaint()

    def titles(self) -> tuple[Row, Row]:
        """What is drawn how, and beside what."""
        look = self.look
        modes = [
            word
            for word, on in (
                ("log", look.log),
                (self.tr(SMOOTHING[look.smoothing][0]), look.smoothing),
                (self.tr(axis_word(self.axis)), self.axis is not Axis.STEP),
                (self.tr("zoomed, 0 shows all"), look.window),
            )
            if on
        ]
        left = row(
            Span(self.tr("metrics"), TextStyle.STRONG),
            Span(f" {' · '.join(modes)}" if modes else "", TextStyle.DIM),
        )
        if self.other is None:
            return left, row(Span(self.tr("Space draws · c compares"), TextStyle.DIM))
        return left, row(
            Span(self.tr("this run "), TextStyle.LOSS),
            Span(self.tr(f"beside {self.other.run_id}"), TextStyle.PACE),
        )

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The list on the left, the charts on the right."""
        names = self.names()
        self.plotted = None
        if not names:
            text = " no metric seen yet: the first log line that names one starts a series"
            return [row(Span(self.tr(text), TextStyle.DIM))]
        self._at = min(self._at, len(names) - 1)
        if width < LIST_FROM:
            if self.look.cursor is not None or self.look.window is not None:
                return self._charts(width, height, 0)
            rows = self._list(names, width, max(3, height - 2 * CHART_LEAST))
            return [*rows, *self._charts(width, height - len(rows), 0)]
        listed = self._list(names, LIST_CELLS, height)
        charts = self._charts(width - LIST_CELLS - 1, height, LIST_CELLS + 1)
        found = []
        for number in range(height):
            left = listed[number] if number < len(listed) else EMPTY
            right = charts[number] if number < len(charts) else EMPTY
            found.append((*padded(left, LIST_CELLS), Span("│", TextStyle.FRAME), *right))
        return found

    def action_move(self, rows: int) -> None:
        """Another series in the list."""
        self._at = min(max(self._at + rows, 0), max(len(self.names()) - 1, 0))
        self.repaint()

    def action_choose_series(self) -> None:
        """Draw the series at the cursor, or leave it out."""
        names, chosen = self.names(), self.chosen
        if names:
            name = names[self._at]
            self._chosen = [n for n in chosen if n != name] if name in chosen else [*chosen, name]
            self.repaint()

    def action_only(self) -> None:
        """Draw the series at the cursor alone; again: the first few."""
        names = self.names()
        if names:
            alone = [names[self._at]]
            self._chosen = None if self._chosen == alone else alone
            self.repaint()

    def _both(self, name: str) -> tuple[Track, Track]:
        assert self.view is not None
        mine = self.view.snapshot.series.get(name, ())
        return mine, self.other.series.get(name, ()) if self.other is not None else ()

    def _list(self, names: list[str], width: int, height: int) -> list[Row]:
        top = min(max(self._at - height + 1, 0), max(len(names) - height, 0))
        chosen = set(self.chosen)
        found = []
        for at in range(top, min(top + height, len(names))):
            name = names[at]
            mine, other = self._both(name)
            track = mine or other
            here = at == self._at
            mark = Span(
                "● " if name in chosen else "○ ", TextStyle.STRONG if name in chosen else TextStyle.DIM
            )
            style = (
                TextStyle.CURSOR if here and self.has_focus else TextStyle.STRONG if here else TextStyle.PLAIN
            )
            value = Span(fit(say(name)(track[-1].mean) if track else fm.DASH, VALUE_CELLS, right=True) + " ")
            room = max(width - NAME_CELLS - VALUE_CELLS - 4, 0)
            line = spark([p.mean for p in track[-120:]], room)
            found.append(
                row(
                    mark,
                    Span(fit(name, NAME_CELLS), style),
                    value,
                    Span(line, series_style(name) if mine else TextStyle.DIM),
                )
            )
        return found

    def _charts(self, width: int, height: int, left: int) -> list[Row]:
        """One under the other, each with its name, value and own y axis; the last has the others' x axis too."""
        assert self.view is not None
        chosen = [name for name in self.chosen if any(len(track) > 1 for track in self._both(name))]
        if not chosen:
            return [row(Span(self.tr(" choose a series with Space; two values make a curve"), TextStyle.DIM))]
        fitting = chosen[: max(1, height // CHART_LEAST)]
        each = height // len(fitting)
        # All charts share one x axis, so that the eye can go straight down.
        whole = extent(self.look, self.tracks())
        look = replace(self.look, axis=self.axis, window=self.look.window or whole)
        rows: list[Row] = []
        for at, name in enumerate(fitting):
            room = each if at < len(fitting) - 1 else height - each * at
            hidden = len(chosen) - len(fitting) if at == len(fitting) - 1 else 0
            rows += self._chart(name, look, width, room, left, hidden)
        return rows

    def _chart(self, name: str, look: Look, width: int, height: int, left: int, hidden: int) -> list[Row]:
        assert self.view is not None
        mine, other = self._both(name)
        if axis_for(look.axis, [other, mine]) is not look.axis:
            look = Look(log=look.log, smoothing=look.smoothing)  # it cannot stand on the others' axis
        theirs = self.other.cuts if self.other is not None else NONE
        curves = [Curve(other, style=TextStyle.PACE, cuts=theirs)] if other else []
        smoothed = look.smoothed(mine, smooth(mine)) if len(mine) >= SMOOTH_FROM and name not in EXACT else ()
        style = TextStyle.LOSS if self.other is not None else series_style(name)
        curves += [Curve(mine, smoothed, style, self.view.snapshot.state.cuts)] if mine else []
        drawn = plot(
            curves,
            look,
            width,
            height - 1,
            marks=attempt_marks(self.view.snapshot.state) if mine else (),
            axis_cells=AXIS_CELLS,
        )
        right = readout(self.look, [mine or other], say(name), self.tr)
        if not right:
            right = row(Span(say(name)((mine or other)[-1].mean), style if mine else TextStyle.PACE))
            if mine and other:
                assert self.other is not None
                right = (
                    Span(self.tr("this run "), TextStyle.DIM),
                    *right,
                    Span(f"  {fm.short_id(self.other.run_id)} ", TextStyle.DIM),
                    Span(say(name)(other[-1].mean), TextStyle.PACE),
                )
        more = self.tr(f"  {hidden} more chosen have no room") if hidden else ""
        head = between(
            row(Span(f" {name}", TextStyle.STRONG), Span(more, TextStyle.DIM)), (*right, Span(" ")), width
        )
        if drawn is None:
            return [
                head,
                row(Span(self.tr(" nothing of it in this window"), TextStyle.DIM)),
                *[EMPTY] * (height - 2),
            ]
        self.plotted = Plot(drawn.rows, drawn.x, drawn.left + left)
        return [head, *drawn.rows, *[EMPTY] * (height - 1 - len(drawn.rows))]


def say(name: str) -> Say:
    """How a value of a series is written, by what its name says of its unit."""
    if name.endswith("loss"):
        return fm.loss
    if name == "lr":
        return fm.rate
    if name.endswith("_s"):
        return fm.seconds
    if name.endswith("_bytes"):
        return fm.memory
    if name.endswith("_ratio") or name == "mfu":
        return fm.percent
    return fm.short


def load_other(this: RunPaths, text: str) -> OtherRun:
    """All series of the run that `text` names: a path, an id, or a unique part of an id.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    found = find_run(text, this.root.parent, os.environ)
    snapshot = SnapshotReader(found).refresh()
    return OtherRun(found.run_id, snapshot.series, snapshot.state.cuts)
