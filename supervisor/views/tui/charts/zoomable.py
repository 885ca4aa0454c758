"""A chart that can be zoomed and inspected with the keyboard and mouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.views.model.thinned_series import Point, Track
from supervisor.views.tui.charts.curves import (
    Axis,
    Look,
    Plot,
    axes_of,
    axis_for,
    axis_word,
    extent,
    nearest,
    positions,
)
from supervisor.views.tui.widgets.panel import Panel

ZOOM = 0.6


class ChartPanel(Panel, can_focus=True):
    """A chart with its own view settings. Subclasses supply `tracks`, and the cursor reads the first one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "cursor(-1)", "cursor back"),
        Binding("right", "cursor(1)", "cursor onward"),
        Binding("plus,equals_sign,up", "zoom_in", "zoom in"),
        Binding("minus,down", "zoom_out", "zoom out"),
        Binding("0", "whole", "all of it"),
        Binding("y", "log", "logarithmic or linear"),
        Binding("x", "axis", "by step, epoch, time or reading"),
        Binding("enter", "choose", "the log at the cursor"),
        Binding("escape", "plain", "away with cursor and window"),
    ]

    class Chosen(Message):
        """Posted to request the log at a point."""

        def __init__(self, point: Point) -> None:
            super().__init__()
            self.point = point

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.look = Look()
        self.plotted: Plot | None = None

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the keys for inspecting and drawing the chart."""
        return [
            ("← →", "cursor", "focused.cursor(-1)"),
            *([("Enter", "its log", "focused.choose")] if self.look.cursor is not None else []),
            ("+ -", "zoom", "focused.zoom_in"),
            *([("0", "all", "focused.whole")] if self.look.window is not None else []),
            ("y", "linear scale" if self.look.log else "log scale", "focused.log"),
            ("x", "axis", "focused.axis"),
        ]

    def modes(self) -> list[str]:
        """Describe any axis settings that are not at their defaults, log scale first."""
        word = axis_word(self.axis)
        found = ["log"] if self.look.log else []
        found += [self.tr(word)] if word else []
        return [*found, *([self.tr("zoomed, 0 shows all")] if self.look.window is not None else [])]

    def closes(self) -> str:
        """Return a label for what Esc clears, or "" if nothing is set. The cursor and the window are cleared together."""
        if self.look.cursor is not None:
            return "clear cursor"
        return "whole range" if self.look.window is not None else ""

    def tracks(self) -> Sequence[Track]:
        """Return the tracks, starting with the one the cursor reads."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Check whether a key is available. If Esc and Enter would do nothing here, they are passed to the screen."""
        if action == "plain":
            return bool(self.closes())
        if action == "choose":
            return self.look.cursor is not None
        return True

    def show_at(self, step: float | None, t: float | None, attempt: int | None) -> bool:
        """Move the cursor to where a log line was written. Return False if its attempt has no matching point."""
        tracks = self.tracks()
        xs = positions(tracks[0], axis_for(self.look.axis, tracks)) if tracks else []
        points = (
            [one for one in zip(tracks[0], xs, strict=True) if one[0].attempt == attempt] if tracks else []
        )
        timed = [(p, x) for p, x in points if p.time is not None]
        if step is not None and points and all(p.step is not None for p, _ in points):
            _, at = min(points, key=lambda one: abs((one[0].step or 0.0) - step))
        elif t is not None and timed:
            _, at = min(timed, key=lambda one: abs((one[0].time or 0.0) - t))
        else:
            return False
        self._look(self.look, cursor=at)
        return True

    def action_cursor(self, way: int) -> None:
        """Move the cursor to the farthest point within one column, or else to the next point. It starts at the latest point."""
        whole, plot = extent(self.look, self.tracks()), self.plotted
        if whole is None or plot is None:
            return
        at = self.look.cursor
        if at is None:
            self._look(self.look, cursor=plot.x.high if self.look.window else whole[1])
            return
        to = at + way * (plot.x.high - plot.x.low) / max(plot.x.dots // 2, 1)
        low, high = sorted((at, to))
        beyond = [x for x in positions(self.tracks()[0], self.axis) if (x > at if way > 0 else x < at)]
        within = [x for x in beyond if low <= x <= high]
        nearest_first = sorted(within, reverse=way > 0) or sorted(beyond, reverse=way < 0)
        self._look(self.look, cursor=nearest_first[0] if nearest_first else to)

    def action_zoom_in(self) -> None:
        """Narrow the window."""
        self._zoom(ZOOM)

    def action_zoom_out(self) -> None:
        """Widen the window."""
        self._zoom(1 / ZOOM)

    def action_whole(self) -> None:
        """Show the whole range."""
        self._look(replace(self.look, window=None))

    def action_plain(self) -> None:
        """Clear the cursor and the window."""
        self._look(replace(self.look, window=None, cursor=None))

    def action_log(self) -> None:
        """Toggle between logarithmic and linear scale."""
        self._look(replace(self.look, log=not self.look.log))

    @property
    def axis(self) -> Axis:
        """The x axis in use."""
        return axis_for(self.look.axis, self.tracks())

    def action_axis(self) -> None:
        """Switch to the next axis that fits the points, keeping the cursor on its point."""
        tracks = self.tracks()
        axes, now = axes_of(tracks), self.axis
        following = axes[(axes.index(now) + 1) % len(axes)]
        other = replace(self.look, axis=None if following is axes[0] else following, window=None, cursor=None)
        point = nearest(self.look, tracks, self.look.cursor) if self.look.cursor is not None else None
        at = None
        if point is not None:
            at = positions(tracks[0], following)[next(n for n, one in enumerate(tracks[0]) if one is point)]
        self._look(other, cursor=at)

    def action_choose(self) -> None:
        """Request the log at the cursor."""
        if self.look.cursor is not None:
            point = nearest(self.look, self.tracks(), self.look.cursor)
            if point is not None:
                self.post_message(self.Chosen(point))

    def on_click(self, event: events.Click) -> None:
        """Place the cursor where the user clicked."""
        plot = self.plotted
        if plot is not None and plot.x.dots >= 4:
            at = (event.x - (1 if self.framed else 0) - plot.left) / (plot.x.dots // 2 - 1)
            self._look(self.look, cursor=plot.x.low + min(max(at, 0.0), 1.0) * (plot.x.high - plot.x.low))

    def _zoom(self, factor: float) -> None:
        whole = extent(self.look, self.tracks())
        if whole is not None:
            self._look(self.look.zoomed(factor, whole))

    def _look(self, look: Look, *, cursor: float | None = None) -> None:
        whole = extent(look, self.tracks())
        if cursor is not None and whole is not None:
            look = look.pointed(cursor, whole)
        if look != self.look:
            self.look = look
            self.repaint()
