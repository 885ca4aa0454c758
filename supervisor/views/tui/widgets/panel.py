"""The base of all panes: rows in, strips out; only changes are painted. Some move, and some of these are lists with a cursor."""

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

# Sentences and commands are copied unwrapped, to be pasted; only a longer log line is cut.
UNWRAPPED_CELLS = 10_000
WHEEL_ROWS = 3


def to_strip(
    spans: Row,
    width: int,
    styles: Mapping[TextStyle, Style],
) -> Strip:
    """The row as a strip of exactly `width` cells, free of control characters."""
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
    """The input of a pane: a snapshot, the wall time of display, the language."""

    snapshot: Snapshot
    now: float
    tr: Tr = english


def tr_of(node: DOMNode) -> Tr:
    """Translates the app's sentences into the person's language."""
    return getattr(node.app, "tr", english)


class Panel(Widget):
    """A pane that draws rows. `framed` panes have a frame whose top edge carries two titles.

    A subclass gives `body`, and `titles` when it is framed. A pane that is not displayed draws nothing.
    """

    ALLOW_SELECT = False

    # Whether the content depends on the time of day, shown in whole seconds.
    uses_clock: ClassVar[bool] = False
    framed: reactive[bool] = reactive(True)
    number: int | None = None  # its key, shown in its frame

    class KeysChanged(Message):
        """Its own keys or their actions have changed, so a footer that shows them is stale."""

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
        """Translates sentences into the person's language, before they are cut to width."""
        return tr_of(self)

    @property
    def ready(self) -> bool:
        """Whether there is something to draw."""
        return self.view is not None

    def body(self, width: int, height: int) -> Sequence[Row]:
        """At most `height` rows of at most `width` cells."""
        raise NotImplementedError

    def titles(self) -> tuple[Row, Row]:
        """Left and right title of the frame."""
        return EMPTY, EMPTY

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Its own keys that deserve a place in the footer while it is shown alone: key, word, action."""
        return ()

    def closes(self) -> str:
        """What Esc closes in this pane (its action is `plain`), before anything around it; empty: nothing."""
        return ""

    def copied(self) -> str:
        """Its content as plain lines below the run's name, for the clipboard; empty if there is none."""
        edge = 2 if self.framed else 0
        return self._copied_below_name(self.body(self.size.width - edge, self.size.height - edge))

    def _copied_below_name(self, rows: Sequence[Row]) -> str:
        """Rows as plain lines below the run's name and the title, without control characters and secrets."""
        if self.view is None or not rows:
            return ""
        state, (left, right) = self.view.snapshot.state, self.titles()
        name = " · ".join(dict.fromkeys(filter(None, (state.run_id, state.name))))
        title = (*left, Span("  "), *right) if self.framed else EMPTY
        lines = ["".join(span.text for span in spans).strip() for spans in ((Span(name),), title, *rows)]
        return "\n".join(map(plain, redact_lines(lines))).strip()

    def show(self, view: View) -> None:
        """Draw another moment."""
        self.view = view
        self.repaint()

    def tick(self, view: View) -> None:
        """Time has passed."""
        self.view = view
        if self.uses_clock:
            self.repaint()

    def repaint(self) -> None:
        """Compose again and paint the changed rows."""
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
        """A row for the compositor, which after a layout may ask for it before the pane hears of its size."""
        size = self.size
        stale = self._drawn_size != size or not self._strips  # its size or focus changed behind a page
        if stale and size.width and size.height:
            self._draw(self._compose_rows(size.width, size.height), styles_of(self.app.theme_variables))
        return self._strips[y] if y < len(self._strips) else Strip.blank(size.width, self.rich_style)

    def notify_style_update(self) -> None:
        """Another theme: every strip is stale."""
        super().notify_style_update()
        if self._strips and styles_of(self.app.theme_variables) is not self._drawn_in:
            self.repaint()

    def watch_framed(self) -> None:
        """Frame on or off."""
        self._strips = []
        self.repaint()

    def on_resize(self, _event: events.Resize) -> None:
        """Another size needs another composition."""
        if self._drawn_size != self.size:
            self.repaint()

    def watch_has_focus(self, has_focus: bool) -> None:
        """The frame shows the focus; `on_focus` would come before Textual has recorded it."""
        super().watch_has_focus(has_focus)
        self._strips = []
        self.repaint()

    def _compose_rows(self, width: int, height: int) -> list[Row]:
        rows = self._composed(width, height)
        if (
            keys := (self.closes(), *self.inner_keys())
        ) != self._keys:  # their actions may depend on the content
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
    """A pane that the wheel moves: a cursor or a page of text. A subclass says how."""

    def action_move(self, rows: int) -> None:
        """Move by rows."""
        raise NotImplementedError

    def wheel(self, rows: int) -> None:
        """The wheel was turned."""
        self.action_move(rows)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves three rows."""
        event.stop()
        self.wheel(WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves three rows."""
        event.stop()
        self.wheel(-WHEEL_ROWS)


class MovingPanel(WheelPanel):
    """A pane that j/k, the arrows and the page keys also move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("g,home", "edge(-1)", "first", show=False),
        Binding("G,end", "edge(1)", "last", show=False),
        Binding("pagedown,ctrl+d", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "page up", show=False),
    ]


class ListPanel(MovingPanel):
    """Rows below an optional heading, with a cursor; a click selects."""

    inverts_cursor: ClassVar[bool] = True  # whether the cursor's row is shown reversed

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.cursor = 0
        self._top = 0
        self._count = 0
        self._page = 1
        self._heading_rows = 0

    def heading(self, width: int) -> Sequence[Row]:  # noqa: ARG002 - for subclasses
        """Rows that do not scroll."""
        return ()

    def count(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    def item(self, index: int, width: int) -> Row:
        """One row. Called only for visible rows."""
        raise NotImplementedError

    def rest(self, first: int, width: int) -> Row:  # noqa: ARG002 - for subclasses
        """The text in place of the rows from `first` on, which do not fit."""
        return (Span(self.tr(f"… {self._count - first} more"), TextStyle.DIM),)

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The visible rows, including the cursor's."""
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
        """Move the cursor to a row, or the nearest existing one."""
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
        """One page up or down."""
        self.action_move(pages * self._page)

    def row_at(self, event: events.MouseEvent) -> int | None:
        """The row under the mouse; None outside the rows."""
        at = event.y - (1 if self.framed else 0) - self._heading_rows
        return self._top + at if 0 <= at < min(self._page, self._count - self._top) else None

    def on_click(self, event: events.Click) -> None:
        """A click on a row."""
        if (index := self.row_at(event)) is not None:
            self.click_row(index)

    def click_row(self, index: int) -> None:
        """Move the cursor there."""
        self.go_to(index)


def framed_rows(inside: Sequence[Row], left: Row, right: Row, width: int, style: TextStyle) -> list[Row]:
    """Rows in a frame of `width` cells whose top edge has two titles; the right one is dropped first."""
    side = Span("│", style)
    return [
        _edge(left, right, width, style),
        *((side, *padded(r, width - 2), side) for r in inside),
        (Span("╰" + "─" * (width - 2) + "╯", style),),
    ]


def _edge(left: Row, right: Row, width: int, style: TextStyle) -> Row:
    """The top edge: ``╭ left ──── right ╮``."""
    room = width - 4
    left = clip(left, room - 1)
    if cells(left) + cells(right) + 5 > room:
        right = EMPTY
    head = (Span("╭ ", style), *left, Span(" ", style)) if left else (Span("╭", style),)
    tail = (Span(" ", style), *right, Span(" ╮", style)) if right else (Span("╮", style),)
    return between(head, tail, width, Span("─", style))
