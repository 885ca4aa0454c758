"""Base classes for all panes, some with scrolling or a list cursor. Rows become strips; only changed rows are painted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from supervisor.text.redact import redact_lines
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.widgets.paint import (
    EMPTY,
    Row,
    Span,
    TextStyle,
    between,
    cells,
    cells_of,
    clip,
    padded,
    plain,
)
from supervisor.views.tui.widgets.textual_theme import styles_of
from supervisor.views.wording.translate import Tr, english

# Copy sentences and commands without wrapping, so that the user can paste them. Cut only longer log lines.
UNWRAPPED_CELLS = 10_000
WHEEL_ROWS = 3


def to_strip(
    spans: Row,
    width: int,
    styles: Mapping[TextStyle, Style],
) -> Strip:
    """Convert a row to a strip of exactly `width` cells, free of control characters."""
    segments: list[Segment] = []
    size = 0
    for text, style in spans:
        if text:
            kept = plain(text)
            segments.append(Segment(kept, styles[style]))
            size += cells_of(kept)
    if size < width:
        segments.append(Segment(" " * (width - size), styles[TextStyle.PLAIN]))
    return Strip(segments, max(size, width)).adjust_cell_length(width, styles[TextStyle.PLAIN])


class View(msgspec.Struct, frozen=True):
    """What a pane draws: a snapshot, the wall-clock time to display, and the language."""

    snapshot: Snapshot
    now: float
    tr: Tr = english


def tr_of(node: DOMNode) -> Tr:
    """Return the translator from English into the user's language."""
    return getattr(node.app, "tr", english)


class Panel(Widget):
    """Base class for panes that draw rows. A `framed` pane has two titles in its top edge.

    Subclasses implement `body` and, if framed, `titles`. A hidden pane draws nothing.
    """

    ALLOW_SELECT = False

    # Whether the content depends on the time of day, shown in whole seconds.
    uses_clock: ClassVar[bool] = False
    framed: reactive[bool] = reactive(True)
    number: int | None = None  # the key of the pane, shown in the frame

    class KeysChanged(Message):
        """Posted when the pane's keys or their actions change, so the footer can update."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.view: View | None = None
        self._rows: list[Row] = []
        self._strips: list[Strip] = []
        self._drawn_size = Size(0, 0)
        self._drawn_in: Mapping[TextStyle, Style] = {}
        self._keys: tuple[object, ...] = ("",)

    @property
    def tr(self) -> Tr:
        """The translator into the user's language. Translate text before truncating it to a width."""
        return tr_of(self)

    @property
    def ready(self) -> bool:
        """Whether the pane has anything to draw."""
        return self.view is not None

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return at most `height` rows, each at most `width` cells wide."""
        raise NotImplementedError

    def titles(self) -> tuple[Row, Row]:
        """Return the frame's left and right titles."""
        return EMPTY, EMPTY

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the pane's own keys for the footer of its full page, as (key, word, action) tuples."""
        return ()

    def closes(self) -> str:
        """Return a label for what Esc (action `plain`) closes in this pane before anything outside it, or "" if nothing."""
        return ""

    def copied(self) -> str:
        """Return the content for the clipboard, as plain lines below the run's name, or "" if there is none."""
        edge = 2 if self.framed else 0
        return self._copied_below_name(self.body(self.size.width - edge, self.size.height - edge))

    def _copied_below_name(self, rows: Sequence[Row]) -> str:
        """Return rows as plain lines below the run's name and the title, without control characters or secrets."""
        if self.view is None or not rows:
            return ""
        state, (left, right) = self.view.snapshot.state, self.titles()
        name = " · ".join(dict.fromkeys(filter(None, (state.run_id, state.name))))
        title = (*left, Span("  "), *right) if self.framed else EMPTY
        lines = ["".join(span.text for span in spans).strip() for spans in ((Span(name),), title, *rows)]
        return "\n".join(map(plain, redact_lines(lines))).strip()

    def show(self, view: View) -> None:
        """Show a new view."""
        self.view = view
        self.repaint()

    def tick(self, view: View) -> None:
        """Update the displayed time."""
        self.view = view
        if self.uses_clock:
            self.repaint()

    def repaint(self) -> None:
        """Recompose and paint the rows that changed."""
        size = self.size
        if not self.display:
            self._strips = []  # composed when next visible
        if not self.is_attached or not size.width or not size.height or not self.display:
            return
        rows = self._compose_rows(size.width, size.height)
        styles = styles_of(self.app.theme_variables)
        if size != self._drawn_size or styles is not self._drawn_in or not self._strips:
            self._draw(rows, styles)
            self.refresh()
            return
        changed = [y for y, spans in enumerate(rows) if spans != self._rows[y]]
        for y in changed:
            self._strips[y] = to_strip(rows[y], size.width, styles)
        self._rows = rows
        if changed:
            self.refresh(*(Region(0, y, size.width, 1) for y in changed))

    def _draw(self, rows: list[Row], styles: Mapping[TextStyle, Style]) -> None:
        size = self.size
        self._strips = [to_strip(r, size.width, styles) for r in rows]
        self._rows, self._drawn_size, self._drawn_in = rows, size, styles

    def render_line(self, y: int) -> Strip:
        """Return a row to the compositor, which may request it before the pane learns its new size."""
        size = self.size
        stale = self._drawn_size != size or not self._strips  # size or focus changed behind a page
        if stale and size.width and size.height:
            self._draw(self._compose_rows(size.width, size.height), styles_of(self.app.theme_variables))
        return self._strips[y] if y < len(self._strips) else Strip.blank(size.width, self.rich_style)

    def notify_style_update(self) -> None:
        """Redraw after a theme change, which makes every strip stale."""
        super().notify_style_update()
        if self._strips and styles_of(self.app.theme_variables) is not self._drawn_in:
            self.repaint()

    def watch_framed(self) -> None:
        """Lay out again after the frame appears or disappears."""
        self._strips = []
        self.repaint()

    def on_resize(self, _event: events.Resize) -> None:
        """Recompose after a resize."""
        if self._drawn_size != self.size:
            self.repaint()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Show the focus in the frame. `on_focus` would run before Textual records the focus."""
        super().watch_has_focus(has_focus)
        self._strips = []
        self.repaint()

    def _compose_rows(self, width: int, height: int) -> list[Row]:
        rows = self._composed(width, height)
        if (
            keys := (self.closes(), *self.inner_keys())
        ) != self._keys:  # the actions may depend on the content
            self._keys = keys
            self.post_message(self.KeysChanged())
        return rows

    def _composed(self, width: int, height: int) -> list[Row]:
        if not self.framed:
            return [
                clip(r, width) for r in self._filled(self.body(width, height) if self.ready else [], height)
            ]
        if width < 4 or height < 3:
            return [EMPTY] * height
        inside = self._filled(self.body(width - 2, height - 2) if self.ready else [], height - 2)
        edge = TextStyle.FOCUS if self.has_focus else TextStyle.FRAME
        left, right = self.titles() if self.ready else (EMPTY, EMPTY)
        if self.number is not None:
            left = (Span(f"[{self.number}] ", TextStyle.DIM), *left)
        return framed_rows(inside, left, right, width, edge)

    @staticmethod
    def _filled(rows: Sequence[Row], height: int) -> list[Row]:
        kept = list(rows[:height])
        return kept + [EMPTY] * (height - len(kept))


class WheelPanel(Panel, can_focus=True):
    """A pane in which the mouse wheel moves a cursor or scrolls text. Subclasses define the movement."""

    def action_move(self, rows: int) -> None:
        """Move by rows."""
        raise NotImplementedError

    def wheel(self, rows: int) -> None:
        """Handle a turn of the mouse wheel."""
        self.action_move(rows)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move down three rows."""
        event.stop()
        self.wheel(WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move up three rows."""
        event.stop()
        self.wheel(-WHEEL_ROWS)


class MovingPanel(WheelPanel):
    """A pane that can also be moved with j/k, the arrow keys, and the page keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down"),
        Binding("k,up", "move(-1)", "up"),
        Binding("g,home", "edge(-1)", "first"),
        Binding("G,end", "edge(1)", "last"),
        Binding("pagedown,ctrl+d", "page(1)", "page down"),
        Binding("pageup,ctrl+u", "page(-1)", "page up"),
    ]


class ListPanel(MovingPanel):
    """A list of rows with a cursor and an optional heading above. Clicking a row selects it."""

    inverts_cursor: ClassVar[bool] = True  # whether the cursor's row is shown reversed

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.cursor = 0
        self._top = 0
        self._count = 0
        self._page = 1
        self._heading_rows = 0

    def heading(self, width: int) -> Sequence[Row]:  # noqa: ARG002 - for subclasses
        """Return the rows above the list, which do not scroll."""
        return ()

    def count(self) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    def item(self, index: int, width: int) -> Row:
        """Return one row. Only visible rows are requested."""
        raise NotImplementedError

    def rest(self, first: int, width: int) -> Row:  # noqa: ARG002 - for subclasses
        """Return the text shown in place of the rows from `first` on when they do not fit."""
        return (Span(self.tr(f"… {self._count - first} more"), TextStyle.DIM),)

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the visible rows, which always include the one under the cursor."""
        heading = list(self.heading(width))
        count = self.count()
        room = max(height - len(heading), 0)
        self._heading_rows = len(heading)
        self._count, self._page = count, max(room, 1)
        self.cursor = min(max(self.cursor, 0), max(count - 1, 0))
        self._top = min(self._top, max(count - room, 0))
        if self.cursor < self._top:
            self._top = self.cursor
        elif self.cursor >= self._top + room:
            self._top = self.cursor - room + 1
        shown = [self.item(index, width) for index in range(self._top, min(self._top + room, count))]
        hidden = count - self._top - len(shown)
        if hidden > 0 and shown and not self.has_focus:
            shown[-1] = self.rest(self._top + len(shown) - 1, width)
        at = self.cursor - self._top
        if self.inverts_cursor and self.has_focus and 0 <= at < len(shown) and count > 1:
            shown[at] = tuple(Span(span.text, TextStyle.CURSOR) for span in padded(shown[at], width))
        return heading + shown

    def go_to(self, index: int) -> None:
        """Move the cursor to a row, clamped to the list."""
        last = max(self.count() - 1, 0) if self.ready else 0
        self.cursor = min(max(index, 0), last)
        self.repaint()

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self.go_to(self.cursor + rows)

    def action_edge(self, way: int) -> None:
        """Go to the first or last row."""
        self.go_to(0 if way < 0 else self._count - 1)

    def action_page(self, pages: int) -> None:
        """Move the cursor one page up or down."""
        self.action_move(pages * self._page)

    def row_at(self, event: events.MouseEvent) -> int | None:
        """Return the index of the row under the mouse, or None if there is none."""
        at = event.y - (1 if self.framed else 0) - self._heading_rows
        return self._top + at if 0 <= at < min(self._page, self._count - self._top) else None

    def on_click(self, event: events.Click) -> None:
        """Pass a click on a row to `click_row`."""
        if (index := self.row_at(event)) is not None:
            self.click_row(index)

    def click_row(self, index: int) -> None:
        """Move the cursor to the clicked row."""
        self.go_to(index)


def framed_rows(inside: Sequence[Row], left: Row, right: Row, width: int, style: TextStyle) -> list[Row]:
    """Frame rows in `width` cells, with two titles in the top edge. If space is short, drop the right one."""
    side = Span("│", style)
    return [
        _edge(left, right, width, style),
        *((side, *padded(r, width - 2), side) for r in inside),
        (Span("╰" + "─" * (width - 2) + "╯", style),),
    ]


def _edge(left: Row, right: Row, width: int, style: TextStyle) -> Row:
    """Return the top edge: ``╭ left ──── right ╮``."""
    room = width - 4
    left = clip(left, room - 1)
    if cells(left) + cells(right) + 5 > room:
        right = EMPTY
    head = (Span("╭ ", style), *left, Span(" ", style)) if left else (Span("╭", style),)
    tail = (Span(" ", style), *right, Span(" ╮", style)) if right else (Span("╮", style),)
    return between(head, tail, width, Span("─", style))
