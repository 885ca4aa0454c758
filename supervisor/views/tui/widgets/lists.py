"""A pane of rows with a cursor, for content that may be longer than the pane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, padded
from supervisor.views.tui.widgets.panel import Panel

WHEEL_ROWS = 3


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
