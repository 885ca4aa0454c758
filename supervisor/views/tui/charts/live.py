"""Live charts: loss by step, and recent utilization and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from supervisor.run.events import renamed_loss
from supervisor.run.records import OUT_OF_MEMORY, FailureClass
from supervisor.run.state import RunState
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.model.thinned_series import Track, lives_on
from supervisor.views.tui.charts.braille import Canvas, Scale, buckets, draw_area
from supervisor.views.tui.charts.curves import Axis, Curve, Mark, plot, readout
from supervisor.views.tui.charts.hues import Gauge, value_style
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row, wrap
from supervisor.views.tui.widgets.panel import Panel, View
from supervisor.views.wording.kinds import reading_ratio, reading_text
from supervisor.views.wording.translate import Tr

WINDOW_S = 600.0
# The title line loses this width to the frame of the loss pane and the pane's number.
EDGE_CELLS = 13
WINDOW_LEAST_S = 60.0


class LossPanel(ChartPanel):
    """A loss chart with faint raw values, a bold moving mean, validation circles, and failure and restart marks."""

    number: int | None = 1

    def tracks(self) -> Sequence[Track]:
        """Return the loss track and the points whose loss is not finite."""
        snapshot = self.view.snapshot if self.view is not None else None
        return (snapshot.metrics["loss"], snapshot.lost) if snapshot is not None else ()

    def titles(self) -> tuple[Row, Row]:
        """Return the title and the readout, which shows the values at the cursor, or the latest values if there is no cursor."""
        if self.view is None:
            return EMPTY, EMPTY
        snapshot = self.view.snapshot
        called = snapshot.loss_name
        name = row(
            Span(self.tr("loss") if called == "loss" else called, TextStyle.STRONG),
            Span(self._modes(), TextStyle.DIM),
        )
        if self.look.cursor is not None:
            room = self.size.width - cells(name[:1]) - EDGE_CELLS
            return name[:1], readout(
                self.look, self.tracks(), fm.loss, self.tr, lost=snapshot.lost, room=room
            )
        if text := not_finite(snapshot):
            return name, row(Span(self.tr(text), TextStyle.BAD))
        if not snapshot.metrics["loss"]:
            return name, EMPTY
        latest = snapshot.latest("loss")
        read = reading_ratio(snapshot.state)
        if read is not None:  # a reading far before the end is not the newest
            newest = row(Span(self.tr(f"{math.floor(100 * read)} % read"), TextStyle.DIM))
        elif latest is None:  # a new attempt is starting
            newest = row(Span(fm.DASH, TextStyle.DIM))
        else:
            newest = row(Span(fm.loss(latest), TextStyle.LOSS))
        room = self.size.width - cells(name) - EDGE_CELLS
        for part in self._beside(snapshot):
            if cells((*newest, *part)) > room:
                break
            newest = (*newest, *part)
        return name, newest

    def _beside(self, snapshot: Snapshot) -> Iterator[Row]:
        """Yield the validation loss and the best loss."""
        vals = _beside_loss(snapshot)
        if vals and lives_on(vals[-1], snapshot.state.cuts):
            yield row(Span(self.tr("  ○ val "), TextStyle.DIM), Span(fm.loss(vals[-1].mean)))
        best, step = snapshot.best_loss
        if best is not None:
            yield row(Span(self.tr("  best "), TextStyle.DIM), Span(fm.loss(best)))
            if step is not None and self.axis is Axis.STEP:
                yield row(Span(self.tr(f" at step {fm.whole(step)}"), TextStyle.DIM))

    def _modes(self) -> str:
        """Describe any axis settings that are not at their defaults."""
        found = self.modes()
        if self.look.log and any(p.low <= 0 for track in self.tracks()[:1] for p in track):
            found[0] = self.tr("no log: values of 0 or less")
        return f" {' · '.join(found)}" if found else ""

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the chart, or the reason there is none."""
        assert self.view is not None
        snapshot = self.view.snapshot
        points = snapshot.metrics["loss"]
        self.plotted = None
        if len(points) >= 2:
            self.plotted = plot(
                [Curve(points, snapshot.smoothed, cuts=snapshot.state.cuts)],
                self.look,
                width,
                height,
                marks=attempt_marks(snapshot.state),
                circles=_beside_loss(snapshot),
                lost=snapshot.lost,
                start_t=start_of(snapshot.state, self.tracks()),
            )
        if self.plotted is not None:
            return self.plotted.rows
        if len(points) >= 2:
            return [row(Span(fit(self.tr("nothing here"), width), TextStyle.DIM))]
        return _nothing_yet(snapshot, width, height, self.tr)


class Use(NamedTuple):
    """What to chart for all devices combined. `full` is the value at capacity; `gauge` is None if that is unknown."""

    what: str
    track: Track
    full: float
    gauge: Gauge | None
    say: Callable[[float], str]

    def style(self, value: float) -> TextStyle:
        """Style a value by how busy or full the device is. A lone process may use several cores, so it has no gauge."""
        return value_style(self.gauge, value / self.full) if self.gauge is not None else TextStyle.PLAIN


def use_of(snapshot: Snapshot, *, memory: bool) -> Use:
    """Return what to chart: GPU usage if there are GPUs, else the machine's memory or CPU, else the first rank's CPU."""
    machine = snapshot.machine
    if snapshot.gpus and not memory:
        return Use("GPU", snapshot.gpu_util, 1.0, Gauge.GPU, fm.percent)
    if snapshot.gpus:
        totals = {gpu.values.get("memory_total_bytes") or 0.0 for gpu in snapshot.gpus}
        total = max(totals) if len(totals) == 1 else 0.0
        say = (lambda value: fm.memory(value * total)) if total else fm.percent
        return Use("memory", snapshot.gpu_memory, 1.0, Gauge.MEMORY, say)
    if memory and machine is not None and (size := machine.values.get("memory_total_bytes")):
        return Use("RAM", machine.memory, size, Gauge.MEMORY, fm.memory)
    if memory:
        return Use("RAM", (), 1.0, None, fm.memory)
    if machine is None or not machine.cpu:
        track = next((rank.cpu for rank in snapshot.ranks.values()), ())
        return Use("CPU", track, 1.0, None, fm.percent)
    return Use("CPU", machine.cpu, 1.0, Gauge.CPU, fm.percent)


class UsePanel(Panel):
    """A chart of how busy (or full) all devices combined were over the last ten minutes."""

    def __init__(self, *, id: str, memory: bool) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.memory = memory
        self._age = ""

    def titles(self) -> tuple[Row, Row]:
        """Return the charted quantity and its latest mean."""
        if self.view is None:
            return EMPTY, EMPTY
        use = use_of(self.view.snapshot, memory=self.memory)
        # Other nodes keep only their newest readings.
        which = Span(f" {self.tr('node 0')}" if self.view.snapshot.nodes else "", TextStyle.DIM)
        left = row(Span(self.tr(use.what), TextStyle.STRONG), which)
        if not use.track:
            return left, EMPTY
        self._age = self._age_text(self.view)
        newest = use.track[-1].mean
        value = Span(use.say(newest), TextStyle.DIM if self._age else use.style(newest))
        return left, row(value, Span(self._age, TextStyle.WARN))

    def tick(self, view: View) -> None:
        """Update the displayed age of a stale reading."""
        self.view = view
        if self._age_text(view) != self._age:
            self.repaint()

    def _age_text(self, view: View) -> str:
        """Return the age of a live run's latest reading, or "" while it is still fresh."""
        track = use_of(view.snapshot, memory=self.memory).track
        if not track or view.snapshot.state.is_over or view.now - track[-1].t < fm.STALE_S:
            return ""
        return f"  {fm.age(view.now - track[-1].t)} ⚠"

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the chart."""
        assert self.view is not None
        use = use_of(self.view.snapshot, memory=self.memory)
        if not use.track or height < 2:
            return [row(Span(fit(self.tr("no reading yet"), width), TextStyle.DIM))]
        end = use.track[-1].t
        # A young run fills the pane. After ten minutes the window moves.
        start = end - min(max(end - use.track[0].t, WINDOW_LEAST_S), WINDOW_S)
        shown = [point for point in use.track if point.t >= start]
        canvas = Canvas(width - 5, height)
        x = Scale(start, end, canvas.dot_columns)
        top = max(use.full, *(point.mean for point in shown))
        y = Scale(0.0, top, canvas.dot_rows, flipped=True)
        draw_area(canvas, buckets(shown, [point.t for point in shown], x), y, use.style)
        labels = {0: f"{100 * top / use.full:.0f}%", height - 1: "0%"}
        found: list[Row] = []
        for number, drawn in enumerate(canvas.drawn()):
            label = labels.get(number, "")
            edge = "┤" if label else "│"
            found.append((Span(fit(label, 4, right=True) + edge, TextStyle.DIM), *drawn))
        return found


def _beside_loss(snapshot: Snapshot) -> Track:
    """Return the validation losses, or no points if the chart is already showing them as its loss."""
    return snapshot.metrics["val_loss"] if snapshot.loss_name != "val_loss" else ()


def not_finite(snapshot: Snapshot) -> str:
    """Report when the loss became non-finite and what it was before. Return "" if it is finite or the log is still being read."""
    first = snapshot.lost_since
    if first is None or not snapshot.is_current(first.attempt) or reading_ratio(snapshot.state) is not None:
        return ""
    word, since = snapshot.not_finite("loss"), ""
    if first.step is not None:
        step = fm.whole(first.step)
        since = f" since step {step}" if str(first.mean) in word else f", {first.mean} at step {step}"
    last = snapshot.latest("loss")
    return f"{word}{since}" + (f", last {fm.loss(last)}" if last is not None else "")


def start_of(state: RunState, tracks: Iterable[Track]) -> float:
    """Return the start of the time axis in wall-clock seconds: the first launch, or the first line of a log attached later."""
    known = [track[0].time for track in tracks if track]
    known += [attempt.started_t or attempt.planned_t for attempt in state.attempts[:1]]
    return min((t for t in known if t is not None), default=0.0)


def attempt_marks(state: RunState) -> list[Mark]:
    """Return marks for failures, later attempts and changes in which loss is printed, newest first so their labels are kept.

    While an old log is still being read, there are no marks, because its last line has not been read yet.
    """
    attempts = state.attempts
    found: list[Mark] = []
    if reading_ratio(state) is not None:
        return found
    for attempt in reversed(attempts):
        failure = attempt.failure
        if failure is None or (failure is FailureClass.UNKNOWN and attempt.verdict_provisional):
            continue
        name = "✗ OOM" if failure in OUT_OF_MEMORY else f"✗ {failure.replace('_', ' ')}"
        over_t = attempt.ended_t or attempt.planned_t
        found.append(Mark(attempt.last_step, over_t, name, TextStyle.BAD))
    for attempt in reversed(attempts[1:]):
        began = attempt.resumed_step if attempt.resumed_step is not None else attempt.first_step
        began_t = attempt.first_step_t or attempt.planned_t
        found.append(Mark(began, began_t, f"↻ {attempt.number}", TextStyle.DIM))
    found += (
        Mark(renamed[0], advisory.t, renamed[1], TextStyle.DIM)
        for advisory in state.advisories
        if (renamed := renamed_loss(advisory)) is not None
    )
    return found


def _nothing_yet(snapshot: Snapshot, width: int, height: int, tr: Tr) -> list[Row]:
    """Explain why the chart is empty."""
    attempts = snapshot.state.attempts
    is_over = bool(attempts) and (attempts[-1].quiet_since is not None or attempts[-1].ended_t is not None)
    text = "no loss seen yet: it appears with the first log line that names one"
    if reading := reading_text(snapshot.state):
        text = reading
    elif snapshot.lost and not snapshot.metrics["loss"]:
        text = "no loss so far is a number: there is no curve"
    elif len(snapshot.metrics["loss"]) == 1:
        text = "one loss seen; a second one makes a curve"
    elif is_over:
        text = "no line of the log names a training loss"
    lines = wrap(tr(text), max(width - 4, 1), 3)
    blank: list[Row] = [EMPTY] * max(0, (height - len(lines)) // 2)
    indents = [" " * max((width - cell_len(line)) // 2, 0) for line in lines]
    shown = [row(Span(indent + line, TextStyle.DIM)) for indent, line in zip(indents, lines, strict=True)]
    return [*blank, *shown]
