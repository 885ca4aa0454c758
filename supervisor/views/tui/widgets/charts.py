"""Live charts: the loss over steps, and utilization and memory over the last minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from supervisor.run.records import FailureClass
from supervisor.run.state import AttemptView
from supervisor.views import format as fm
from supervisor.views.history import Point, Track
from supervisor.views.snapshot import Snapshot
from supervisor.views.tui.widgets.canvas import Canvas
from supervisor.views.tui.widgets.paint import EMPTY, Ink, Row, Span, fit, row, wrap
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.tui.widgets.plotting import (
    Scale,
    buckets,
    draw_area,
    draw_band,
    draw_line,
    labels,
    loss_bounds,
    ticks,
)

WINDOW_S = 600.0
# From these widths on the loss pane's title has room for the validation loss, and for the best one.
VAL_WIDTH = 38
BEST_WIDTH = 50
WINDOW_LEAST_S = 60.0
# A smoothed loss that moved less than this over the newest fifth of the run is level.
LEVEL_RATIO = 0.005
MEMORY_FAILURES = (FailureClass.CUDA_OOM, FailureClass.HOST_OOM)


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the numbers of an axis stand: (row or column, text)."""

    labels: tuple[tuple[int, str], ...]
    width: int


def y_axis(scale: Scale, rows: int) -> Axis:
    """Round numbers beside the rows, at most one in two rows."""
    found: dict[int, str] = {}
    values = ticks(scale.low, scale.high, max(2, rows // 2))
    for value, text in zip(values, labels(values), strict=True):
        found.setdefault(min(max(scale.dot(value) // 4, 0), rows - 1), text)
    return Axis(tuple(found.items()), max((len(text) for text in found.values()), default=0))


class LossPanel(Panel, can_focus=True):
    """The loss: raw values faint, their moving mean strong, validation as circles, failures marked."""

    number = 1

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The losses and the attempts; the log's sources while there is no loss."""
        metrics, state = snapshot.metrics, snapshot.state
        return (metrics["loss"], metrics["val_loss"], state.attempts, state.best_loss, snapshot.logs.sources)

    def titles(self) -> tuple[Row, Row]:
        """The newest values and where they go."""
        if self.view is None:
            return EMPTY, EMPTY
        snapshot = self.view.snapshot
        latest = snapshot.smoothed[-1] if snapshot.smoothed else None
        if latest is None:
            return row(Span("loss", Ink.STRONG)), EMPTY
        right = [Span(fm.loss(latest), Ink.LIVE), Span(_trend(snapshot.smoothed))]
        val = snapshot.latest("val_loss")
        width = self.size.width
        if val is not None and width >= VAL_WIDTH:
            right += [Span("  ○ val ", Ink.DIM), Span(fm.loss(val))]
        if snapshot.state.best_loss is not None and width >= BEST_WIDTH:
            right += [Span("  best ", Ink.DIM), Span(fm.loss(snapshot.state.best_loss))]
        return row(Span("loss", Ink.STRONG)), tuple(right)

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The chart, or what is missing for one."""
        assert self.view is not None
        snapshot = self.view.snapshot
        points = snapshot.metrics["loss"]
        if len(points) < 2 or height < 3 or width < 20:
            return _nothing_yet(snapshot, width, height)
        by_step = all(p.step is not None for p in points)
        x_of: Callable[[Point], float] = _step if by_step else _time
        low, high = loss_bounds(points, snapshot.smoothed)
        rows = height - 2 if height >= 8 else height - 1
        y = Scale(low, high, 4 * rows, flipped=True)
        axis = y_axis(y, rows)
        canvas = Canvas(width - axis.width - 2, rows)
        x = Scale(min(map(x_of, points)), max(map(x_of, points)), canvas.dot_columns)
        failures = _failures(snapshot.state.attempts, x) if by_step else []
        for column, _ in failures:
            canvas.rule(column, "┊", Ink.BAD)
        self._draw(canvas, snapshot, points, x_of, (x, y))
        return _with_axes(canvas, axis, x, failures, by_step=by_step, line=height >= 8)

    @staticmethod
    def _draw(
        canvas: Canvas,
        snapshot: Snapshot,
        points: Track,
        x_of: Callable[[Point], float],
        scales: tuple[Scale, Scale],
    ) -> None:
        x, y = scales
        newest = points[-1].attempt
        draw_band(canvas, canvas.layer(Ink.DIM), buckets(points, x_of, x), y)
        smooth = buckets(points, x_of, x, snapshot.smoothed)
        draw_line(canvas, canvas.layer(Ink.STRONG), [b for b in smooth if b.attempt != newest], y)
        draw_line(canvas, canvas.layer(Ink.LIVE), [b for b in smooth if b.attempt == newest], y)
        for point in snapshot.metrics["val_loss"]:
            if point.step is not None or x_of is _time:
                canvas.mark(x.dot(x_of(point)) // 2, y.dot(point.mean) // 4, "○", Ink.STRONG)


class UsePanel(Panel):
    """How busy (or how full) all devices together were in the last ten minutes."""

    def __init__(self, *, id: str, memory: bool) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.memory = memory

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The newest reading of anything."""
        return (self._track(snapshot)[1],)

    def titles(self) -> tuple[Row, Row]:
        """What is drawn and its newest mean."""
        if self.view is None:
            return EMPTY, EMPTY
        what, track = self._track(self.view.snapshot)
        if not track:
            return row(Span(what, Ink.STRONG)), EMPTY
        return row(Span(what, Ink.STRONG)), row(Span(self._text(track[-1].mean), Ink.LIVE))

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The chart."""
        assert self.view is not None
        _, track = self._track(self.view.snapshot)
        if not track or height < 2:
            return [row(Span(fit("no reading yet", width), Ink.DIM))]
        end = track[-1].t
        # A young run fills the pane; from ten minutes on the window moves.
        start = end - min(max(end - track[0].t, WINDOW_LEAST_S), WINDOW_S)
        shown = [p for p in track if p.t >= start]
        canvas = Canvas(width - 5, height)
        x = Scale(start, end, canvas.dot_columns)
        total = self._total() if self.memory and not self.view.snapshot.gpus else 1.0
        top = max(total, *(p.mean for p in shown))
        y = Scale(0.0, top, canvas.dot_rows, flipped=True)
        draw_area(canvas, canvas.layer(Ink.LIVE), buckets(shown, _time, x), y)
        found: list[Row] = []
        for number in range(height):
            full = f"{100 * top / total:.0f}%"
            label = full if number == 0 else "0%" if number == height - 1 else ""
            edge = "┤" if label else "│"
            found.append((Span(fit(label, 4, right=True) + edge, Ink.DIM), *canvas.row(number)))
        return found

    def _track(self, snapshot: Snapshot) -> tuple[str, Track]:
        """Title, and ratios (bytes for the machine's memory)."""
        if snapshot.gpus:
            return ("memory", snapshot.gpu_memory) if self.memory else ("GPU", snapshot.gpu_util)
        machine = snapshot.machine
        if self.memory:
            return "RAM", machine.memory if machine else ()
        if machine and machine.cpu:
            return "CPU", machine.cpu
        return "CPU", next((rank.cpu for rank in snapshot.ranks.values()), ())

    def _text(self, value: float) -> str:
        assert self.view is not None
        snapshot = self.view.snapshot
        if not self.memory:
            return fm.percent(value)
        if not snapshot.gpus:
            return fm.memory(value)
        totals = [gpu.values.get("memory_total_bytes") or 0.0 for gpu in snapshot.gpus]
        return fm.memory(value * max(totals)) if len(set(totals)) == 1 else fm.percent(value)

    def _total(self) -> float:
        """Bytes of the machine's memory; 1 where it is not known."""
        machine = self.view.snapshot.machine if self.view else None
        return (machine.values.get("memory_total_bytes") if machine else None) or 1.0


def _with_axes(
    canvas: Canvas, axis: Axis, x: Scale, failures: list[tuple[int, str]], *, by_step: bool, line: bool
) -> list[Row]:
    """The canvas between its numbers."""
    numbers = dict(axis.labels)
    found: list[Row] = []
    for number in range(canvas.rows):
        label = numbers.get(number, "")
        edge = "┤" if label else "│"
        found.append((Span(f"{label:>{axis.width}} {edge}", Ink.DIM), *canvas.row(number)))
    stops = [(x.dot(v) // 2, fm.whole(v)) for v in ticks(x.low, x.high, max(2, canvas.columns // 14))]
    if not by_step:
        stops = [(x.dot(x.low) // 2, fm.time_of_day(x.low)), (canvas.columns - 1, fm.time_of_day(x.high))]
    taken = [(column, text, Ink.BAD) for column, text in failures] + [(c, t, Ink.DIM) for c, t in stops]
    if line:
        edge = "".join("┴" if c in {column for column, _, _ in taken} else "─" for c in range(canvas.columns))
        found.append((Span(" " * (axis.width + 1) + "└" + edge, Ink.DIM),))
    found.append((Span(" " * (axis.width + 2)), *_labels(taken, canvas.columns)))
    return found


def _labels(taken: list[tuple[int, str, Ink]], width: int) -> Row:
    """Texts under their columns; the first in the list wins where two would touch."""
    line: list[tuple[str, Ink]] = [(" ", Ink.DIM)] * width
    for column, text, ink in taken:
        start = min(max(column - len(text) // 2, 0), max(width - len(text), 0))
        before, after = max(start - 1, 0), min(start + len(text) + 1, width)
        if len(text) <= width and all(character == " " for character, _ in line[before:after]):
            line[start : start + len(text)] = [(character, ink) for character in text]
    return tuple(Span(character, ink) for character, ink in line)


def _failures(attempts: tuple[AttemptView, ...], x: Scale) -> list[tuple[int, str]]:
    """Column and name of each failure that has a step, newest first, so that the newest keeps its label."""
    found: list[tuple[int, str]] = []
    for attempt in reversed(attempts):
        verdict = attempt.verdict
        if verdict is None or attempt.last_step is None or verdict.failure is FailureClass.HEALTHY:
            continue
        if x.low <= attempt.last_step <= x.high:
            name = "✗ OOM" if verdict.failure in MEMORY_FAILURES else f"✗ {verdict.failure.replace('_', ' ')}"
            found.append((x.dot(attempt.last_step) // 2, name))
    return found


def _trend(smoothed: Sequence[float]) -> str:
    """Down, up or level over the newest fifth."""
    past = smoothed[-min(len(smoothed), max(2, len(smoothed) // 5))]
    change = (smoothed[-1] - past) / (abs(past) or 1.0)
    return " ▼" if change < -LEVEL_RATIO else " ▲" if change > LEVEL_RATIO else " ▶"


def _nothing_yet(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    """An empty chart says why it is empty."""
    state = snapshot.state
    if len(snapshot.metrics["loss"]) == 1:
        said = "one loss seen; a second one makes a curve"
    elif not state.attempts:
        said = "nothing launched yet: the loss appears with the first step"
    elif snapshot.logs.sources:
        said = "no loss seen yet: it appears with the first log line that names one"
    else:
        said = "no loss seen yet: no log file has appeared"
    lines = wrap(said, max(width - 4, 1), 3)
    rows: list[Row] = [EMPTY] * max(0, (height - len(lines)) // 2)
    return [*rows, *(row(Span(line.center(width), Ink.DIM)) for line in lines)]


def _step(point: Point) -> float:
    return point.step or 0.0


def _time(point: Point) -> float:
    return point.t
