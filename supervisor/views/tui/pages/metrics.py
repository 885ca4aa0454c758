"""The metrics page: a grid with a chart per series, or one full-size chart. Each chart can show several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from msgspec.structs import replace
from textual import events
from textual.binding import Binding, BindingType

from supervisor.job.arguments.command_line import differing
from supervisor.run.paths import RunPaths
from supervisor.run.summaries import name_given
from supervisor.views import format as fm
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.run_list import own_arguments
from supervisor.views.model.thinned_series import Point, Track, smooth
from supervisor.views.tui.charts.curves import (
    Axis,
    Curve,
    Look,
    Plot,
    axis_for,
    extent,
    nearest,
    of_track,
    plot,
    readout,
    shifted,
    span_of,
)
from supervisor.views.tui.charts.hues import band_style, run_letter, run_style, series_style
from supervisor.views.tui.charts.live import attempt_marks, start_of
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.shell.prompts import AskLine
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, between, cells, clip, row
from supervisor.views.tui.widgets.panel import framed_rows

# Minimum size of a chart with its frame.
CELL_WIDTH, CELL_HEIGHT = 36, 9
AXIS_CELLS = 7  # "26.5k" and its tick
FIRST = (
    "loss",
    "val_loss",
    "lr",
    "grad_norm",
    "tokens_per_sec",
    "samples_per_sec",
    "step_time_s",
    "epoch_time_s",
    "data_wait_s",
    "mfu",
)

# With fewer points, a moving mean lags behind the curve. Configured values have no noise to smooth.
SMOOTH_FROM = 60
EXACT = frozenset(["lr", "learning_rate"])

Say: TypeAlias = Callable[[float | None], str]
smoothed_usually = of_track(smooth)


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run to compare. Its time axis starts at `start_t`. `cuts` is as in `curves.Curve`; `given` is the user-set name, if any."""

    run: RunPaths
    series: Mapping[str, Track]
    cuts: Mapping[int, float]
    start_t: float = 0.0
    given: str = ""
    arguments: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """The name the user gave the run, or else the two words of its id."""
        return self.given or fm.short_id(self.run.run_id)


class Cell(NamedTuple):
    """A grid cell's position and size, in terminal cells from the page's upper-left corner."""

    x: int
    y: int
    width: int
    height: int


def grid_of(count: int, width: int, height: int) -> tuple[int, int]:
    """Return the columns and rows for `count` charts: as many as fit, in a grid that is roughly square."""
    most_columns, most_rows = max(width // CELL_WIDTH, 1), max(height // CELL_HEIGHT, 1)
    least = math.ceil(count / most_rows)  # columns
    columns = min(max(math.isqrt(count), least, 1), most_columns)
    return columns, min(math.ceil(count / columns) or 1, most_rows)


def grid_cells(shape: tuple[int, int], width: int, height: int, top: int) -> list[Cell]:
    """Return a grid's cells in reading order, all of the same height."""
    columns, rows = shape
    high = height // rows
    xs = [width * at // columns for at in range(columns + 1)]
    return [Cell(xs[x], top + y * high, xs[x + 1] - xs[x], high) for y in range(rows) for x in range(columns)]


class MetricsPage(ChartPanel):
    """A page that charts every series in a grid. Visible charts share a step or time axis; keys act on the selected chart."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "move(1)", "next chart"),
        Binding("k", "move(-1)", "previous chart"),
        Binding("down", "row(1)", "chart below"),
        Binding("up", "row(-1)", "chart above"),
        Binding("pagedown,ctrl+d", "turn(1)", "next page of charts"),
        Binding("pageup,ctrl+u", "turn(-1)", "previous page of charts"),
        Binding("g,home", "move(-100000)", "first chart"),
        Binding("G,end", "move(100000)", "last chart"),
        Binding("z,o", "alone", "this chart at full size, or all"),
        Binding("slash", "find", "charts by a part of their name"),
        Binding("c", "screen.compare", "other runs in each chart"),
        *(
            b
            for b in ChartPanel.BINDINGS
            if isinstance(b, Binding) and b.action not in {"zoom_in", "zoom_out", "choose", "plain"}
        ),
        Binding("plus,equals_sign", "zoom_in", "zoom in"),
        Binding("minus", "zoom_out", "zoom out"),
        Binding("enter", "choose", "the log at the cursor; without one: full size"),
        Binding("escape", "plain", "cursor and window, full size, search: away"),
    ]

    framed = False

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.others: list[OtherRun] = []
        self.alone = False
        self.searched = ""
        self._at = 0
        self._name = ""  # the selected chart stays selected when other series appear before it
        self._shape = (1, 1)
        self._sight: dict[str, Cell] = {}

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the keys for choosing a chart, then those for reading and drawing it."""
        return [
            ("z", "all charts" if self.alone else "full size", "focused.alone"),
            ("/", "find", "focused.find"),
            ("c", "compare", "compare"),
            *super().inner_keys(),
        ]

    def closes(self) -> str:
        """Return a label for what Esc closes: the cursor and window first, then the full-size chart or search."""
        return super().closes() or ("all charts" if self.alone or self.searched else "")

    # -- data ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the series that match the search, standard series first."""
        found = set(self.view.snapshot.series if self.view is not None else ())
        found.update(*(other.series for other in self.others))
        words = self.searched.lower().split()
        found = {name for name in found if all(word in name.lower() for word in words)}
        usual = [name for name in FIRST if name in found]
        return [*usual, *sorted(found.difference(usual))]

    @property
    def chosen(self) -> str | None:
        """The selected series."""
        names = self.names()
        return names[self._index(names)] if names else None

    def _index(self, names: Sequence[str]) -> int:
        if self._name in names:
            return names.index(self._name)
        return max(min(self._at, len(names) - 1), 0)

    def runs(self, name: str) -> list[Track]:
        """Return one track of a series per run, this run first. The track is empty for a run without that series."""
        mine = self.view.snapshot.series.get(name, ()) if self.view is not None else ()
        return [
            mine,
            *(shifted(other.series.get(name, ()), self._start_t - other.start_t) for other in self.others),
        ]

    @property
    def _start_t(self) -> float:
        """The origin of the time axis. Other runs are shifted to start there."""
        if self.view is None:
            return 0.0
        return start_of(self.view.snapshot.state, self.view.snapshot.series.values())

    def tracks(self) -> Sequence[Track]:
        """Return every visible series, starting with the one that the cursor reads."""
        chosen = self.chosen
        names = [*([chosen] if chosen else ()), *(name for name in self._sight if name != chosen)]
        return [track for name in names for track in self.runs(name) if track]

    def compare_with(self, others: Sequence[OtherRun]) -> None:
        """Draw other runs alongside this one, replacing any added earlier."""
        self.others = list(others)
        self.repaint()

    # -- drawing ---------------------------------------------------------------------------------------------

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return a header that lists the visible charts and their runs, then the charts."""
        names = self.names()
        self.plotted = None
        if not names:
            text = (
                "no chart has that in its name: / looks for others, Esc shows all"
                if self.searched
                else "no metric seen yet: the first log line that names one starts a series"
            )
            self._sight = {}
            return [self._head(names, width), EMPTY, row(Span(f" {self.tr(text)}", TextStyle.DIM))]
        self._at = self._index(names)
        self._name = names[self._at]
        arguments = self._differing_arguments(width) if self.others else EMPTY
        above = [arguments] if arguments else []
        top = 1 + len(above)
        self._shape = (1, 1) if self.alone else grid_of(len(names), width, height - top)
        spots = grid_cells(self._shape, width, height - top, top=top)
        first = self._at // len(spots) * len(spots)
        self._sight = dict(zip(names[first:], spots, strict=False))
        look = replace(self.look, axis=self.axis, cursor=None)
        # All charts share one x axis, so that points line up from chart to chart.
        look = replace(look, window=self.look.window or extent(look, self.tracks()))
        lines: list[list[Span]] = [[] for _ in range(height)]
        for name, cell in self._sight.items():
            rows = self._cell(name, cell, look, here=name == self._name)
            for line, spans in zip(lines[cell.y :], rows, strict=False):  # cut off on a short screen
                line.extend(spans)
        return [self._head(names, width), *above, *(tuple(line) for line in lines[top:])]

    def _head(self, names: Sequence[str], width: int) -> Row:
        """Return the header row: how many charts are visible, how they are drawn, and each run's color."""
        seen = list(self._sight)
        counted = ""
        if 0 < len(seen) < len(names):
            first = names.index(seen[0]) + 1
            place = str(first) if len(seen) == 1 else f"{first}-{first + len(seen) - 1}"
            counted = self.tr(f"{place} of {len(names)}")
        modes = [counted, f"/{self.searched}" if self.searched else "", *self.modes()]
        shown = " · ".join(filter(None, modes))
        left = row(
            Span(f" {self.tr('metrics')}", TextStyle.STRONG),
            Span(f" {shown}" if shown else "", TextStyle.DIM),
        )
        room = width - cells(left) - 2
        if not self.others:
            more = self.tr("PgDn more") if counted else ""
            return between(left, row(Span(f"{more} ", TextStyle.DIM)), width)
        parts = [
            row(Span(f"{run_letter(at)} {name}", run_style(at)))
            for at, name in enumerate([self.tr("this run"), *(other.label for other in self.others)])
        ]
        return between(left, (*_as_many_as_fit(parts, room - 1), Span(" ")), width)

    def _differing_arguments(self, width: int) -> Row:
        """Return a row such as ``lr 1e-2 | 1e-3``, each value in its run's color. It is empty if any run's arguments are unknown."""
        assert self.view is not None
        snapshot = self.view.snapshot
        job = snapshot.run_file.job if snapshot.run_file is not None else None
        mine = own_arguments(job, snapshot.state)
        lines = [args for args in (mine, *(other.arguments for other in self.others)) if args is not None]
        if len(lines) <= len(self.others):
            return EMPTY
        found = differing(*lines)
        if not found:
            same = len(set(lines)) == 1
            return row(Span(f" {self.tr('the same arguments')}", TextStyle.DIM)) if same else EMPTY
        label = row(Span(f" {self.tr('arguments')}:  ", TextStyle.DIM))
        parts: list[Row] = []
        for name, values in found:
            part = row(Span(name.lstrip("-+"), TextStyle.DIM))
            for at, value in enumerate(values):
                text = fm.DASH if value is None else value or self.tr("on")
                part = (*part, Span(" | " if at else " ", TextStyle.DIM), Span(text, run_style(at)))
            parts.append(part)
        return clip((*label, *_as_many_as_fit(parts, width - cells(label))), width)

    def _cell(self, name: str, cell: Cell, look: Look, *, here: bool) -> list[Row]:
        """Return a chart in its frame. If `here` is true, the chart is selected."""
        inner = (cell.width - 2, cell.height - 2)
        drawn = self._plot(name, look, *inner)
        if drawn is not None:
            drawn = drawn.with_cursor(self.look.cursor)
            if here:
                self.plotted = Plot(drawn.rows, drawn.x, drawn.left + cell.x + 1, drawn.height)
        text = "one value so far" if all(len(track) < 2 for track in self.runs(name)) else "nothing here"
        rows = drawn.rows if drawn is not None else [row(Span(self.tr(text), TextStyle.DIM))]
        rows = [*rows[: inner[1]], *[EMPTY] * (inner[1] - len(rows))]
        left = row(Span("▸ " if here else "", TextStyle.KEY), Span(name, TextStyle.STRONG))
        edge = TextStyle.FOCUS if here else TextStyle.FRAME
        return framed_rows(
            rows, left, self._values(name, look, inner[0] - cells(left) - 6, here=here), cell.width, edge
        )

    def _values(self, name: str, look: Look, room: int, *, here: bool) -> Row:
        """Return the latest value, or the value at the cursor. With several runs, return one value per run."""
        say, cursor = say_of(name), self.look.cursor
        tracks = self.runs(name)
        look = replace(look, cursor=cursor)
        if here and cursor is not None and len(tracks) == 1:
            return readout(look, tracks, say, self.tr, room=room)
        parts: list[Row] = []
        axis = axis_for(look.axis, [track for track in tracks if track])
        if here and cursor is not None and axis is Axis.STEP:
            parts.append(row(Span(self.tr(f"step {fm.whole(round(cursor))}  ").rstrip(), TextStyle.DIM)))
        for number, track in enumerate(tracks):
            span = span_of(track, axis)
            if span is None:
                continue
            point: Point | None = track[-1]
            if cursor is not None:
                point = nearest(look, [track], cursor) if cursor <= span[1] else None
            style = run_style(number) if self.others else series_style(name)
            letter = f"{run_letter(number)} " if self.others else ""
            text = say(point.mean if point else None)
            if cursor is None and number == 0 and self.view is not None:
                odd = self.view.snapshot.not_finite(name)
                text, style = (self.tr(odd), TextStyle.BAD) if odd else (text, style)
            parts.append(row(Span(f"{letter}{text}", style)))
        return _as_many_as_fit(parts, room)

    def _plot(self, name: str, look: Look, width: int, height: int) -> Plot | None:
        """Draw every run's curve, with this run on top. Return None if there are fewer than two values."""
        assert self.view is not None
        state, tracks = self.view.snapshot.state, self.runs(name)
        if sum(map(len, tracks)) < 2:
            return None
        known = [track for track in tracks if track]
        if axis_for(look.axis, known) is not look.axis:
            look = Look(log=look.log)  # the axis of this chart may not fit the others
        cuts = [state.cuts, *(other.cuts for other in self.others)]
        is_smooth = name not in EXACT
        curves = [
            Curve(
                track,
                smoothed_usually(track) if is_smooth and len(track) >= SMOOTH_FROM else (),
                run_style(at) if self.others else series_style(name),
                cuts[at],
                band=band_style(name) if at == 0 else None,
                letter=run_letter(at) if self.others else "",
            )
            for at, track in enumerate(tracks)
            if track
        ]
        marks = attempt_marks(state) if tracks[0] else ()
        return plot(
            curves[::-1], look, width, height, marks=marks, axis_cells=AXIS_CELLS, start_t=self._start_t
        )

    # -- actions ---------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Check whether a key is available. Enter is always available."""
        return True if action == "choose" else super().check_action(action, parameters)

    def action_move(self, charts: int) -> None:
        """Select the next or previous chart, in reading order."""
        names = self.names()
        if names:
            self._name = names[min(max(self._index(names) + charts, 0), len(names) - 1)]
            self.repaint()

    def action_row(self, rows: int) -> None:
        """Select the chart below or above."""
        at = self._at + rows * self._shape[0]
        if 0 <= at < len(self.names()):
            self.action_move(at - self._at)

    def action_turn(self, pages: int) -> None:
        """Show the next or previous page of charts."""
        self.action_move(pages * self._shape[0] * self._shape[1])

    def action_alone(self) -> None:
        """Toggle between this chart at full size and all charts."""
        self.alone = not self.alone
        self.repaint()

    def action_find(self) -> None:
        """Show only the charts whose names contain the typed text."""
        before, name = self.searched, self._name

        def typed(text: str) -> None:
            self.searched = text.strip()
            self._at, self._name = 0, name  # the chart stays selected while it matches, and after the search
            self.repaint()

        def closed(text: str | None) -> None:
            typed(before if text is None else text)

        self.app.push_screen(AskLine("charts", before, typed, "a part of their name; empty: all"), closed)

    def action_choose(self) -> None:
        """Open the log at the cursor, or toggle this chart's full size if there is no cursor."""
        if self.look.cursor is not None:
            super().action_choose()
        else:
            self.action_alone()

    def action_plain(self) -> None:
        """Clear the cursor and zoom. If neither is set, return to the grid; if already there, clear the search."""
        if self.look.cursor is not None or self.look.window is not None:
            super().action_plain()
        elif self.alone:
            self.action_alone()
        else:
            self.searched = ""
            self.repaint()

    def on_click(self, event: events.Click) -> None:
        """Select the clicked chart. The `ChartPanel` handler then places its cursor."""
        self._choose_at(event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom the chart under the mouse."""
        self._choose_at(event)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom the chart under the mouse."""
        self._choose_at(event)

    def _choose_at(self, event: events.MouseEvent) -> None:
        """Select the chart under the mouse. Textual then calls the `ChartPanel` handler."""
        for name, cell in self._sight.items():
            inside = cell.x <= event.x < cell.x + cell.width and cell.y <= event.y < cell.y + cell.height
            if inside and name != self.chosen:
                self._name = name
                self.repaint()


def _as_many_as_fit(parts: Sequence[Row], room: int) -> Row:
    """Join as many parts as fit, two spaces apart, and append the number of parts left out."""
    found: Row = EMPTY
    for at, part in enumerate(parts):
        more = len(parts) - at - 1
        gap = row(Span("  ")) if found else EMPTY
        if cells((*found, *gap, *part)) + (len(f"  +{more}") if more else 0) > room:
            return (*found, *gap, Span(f"+{more + 1}", TextStyle.DIM))
        found = (*found, *gap, *part)
    return found


def say_of(name: str) -> Say:
    """Return the formatter for a series, based on the unit in its name."""
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


def load_other(run: RunPaths) -> OtherRun:
    """Load a run with all of its series."""
    snapshot = SnapshotReader(run).refresh()
    job = snapshot.run_file.job if snapshot.run_file is not None else None
    start_t = start_of(snapshot.state, snapshot.series.values())
    arguments = own_arguments(job, snapshot.state)
    return OtherRun(run, snapshot.series, snapshot.state.cuts, start_t, name_given(job), arguments)
