"""One page of the logs: rows, a cursor, a selection, what was found. It shows what it is given and reads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.cells import chop_cells
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.views import format as fm
from supervisor.views.logs.commands import Page
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.tui.logs.rows import (
    SIDE_CELLS,
    TONES,
    cut_spans,
    nodes_text,
    text_of,
    text_spans,
    who_text,
    who_width,
)
from supervisor.views.tui.widgets.lists import WheelPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row
from supervisor.views.wording.translate import Tr

# A wrapped line takes at most this much of the page: the next one is always in reach.
MOST_WRAPPED = 0.8


class LogPage(WheelPanel):
    """Rows of a page; moving beyond them is asked of whoever reads."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("j,down", "move(1)", "down", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d,ctrl+f", "page(1)", "page down", show=False),
        Binding("g,home", "edge(-1)", "first line", show=False),
        Binding("G,end", "edge(1)", "newest line, follow", show=False),
        Binding("left,h", "side(-1)", "left", show=False),
        Binding("right,l", "side(1)", "right", show=False),
        Binding("V,shift+down", "mark", "begin or end a selection", show=False),
    ]

    class Beyond(Message):
        """The rows above (negative) or below are wanted."""

        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

    class Edge(Message):
        """The first line (-1) or the newest one (1) is wanted."""

        def __init__(self, way: int) -> None:
            super().__init__()
            self.way = way

    class Frozen(Message):
        """The cursor was moved: the page must stand still."""

    class Moved(Message):
        """The cursor is on another row of the page."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.page: Page | None = None
        self.wraps = False
        self.cursor = 0
        self.mark: LogRow | None = None
        self._side = 0
        self._jump = 0
        self._shown: list[int] = []  # the row of each line in sight

    @property
    def ready(self) -> bool:
        """There is a page."""
        return self.page is not None

    @property
    def row(self) -> LogRow | None:
        """The row under the cursor."""
        rows = self.page.rows if self.page is not None else ()
        return rows[self.cursor] if self.cursor < len(rows) else None

    @property
    def selection(self) -> tuple[LogRow, LogRow] | None:
        """The first and last row that are selected; None: no row is there."""
        here = self.row
        return (self.mark or here, here) if here is not None else None

    def take(self, page: Page) -> None:
        """Show another page; the cursor stays on its line where that is still in sight."""
        before = self.row
        self.page = page
        last = max(len(page.rows) - 1, 0)
        if page.following:
            self.cursor = last
        elif page.cursor is not None and page.jump != self._jump:
            self.cursor = page.cursor
        else:
            self.cursor = self._found_again(before, min(self.cursor, last))
        self._jump = page.jump
        self.repaint()

    def _found_again(self, before: LogRow | None, otherwise: int) -> int:
        if before is None or self.page is None:
            return otherwise
        index, line = before.parts[0]
        for number, each in enumerate(self.page.rows):
            if any(i == index and x.offset == line.offset for i, x in each.parts):
                return number
        if self.page.rows and before.place <= self.page.rows[0].place:
            return 0
        return (
            len(self.page.rows) - 1
            if self.page.rows and before.place > self.page.rows[-1].place
            else otherwise
        )

    # -- drawing -----------------------------------------------------------------------------------------

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """A selection can be given up."""
        return [("V", "end selection", "focused.mark")] if self.mark is not None else []

    def titles(self) -> tuple[Row, Row]:
        """What is shown, and whether it moves."""
        page = self.page
        if page is None:
            return EMPTY, EMPTY
        tr = self.tr
        what = _what(page, tr)
        left = [Span(tr("log"), TextStyle.STRONG), Span(f" · {what}" if what else "")]
        if page.query:
            left.append(Span(f" · {page.query}", TextStyle.LIVE))
        if page.doing:
            left.append(Span(f" · {tr(page.doing)}", TextStyle.WARN))
        return tuple(left), row(
            Span(tr("frozen"), TextStyle.WARN)
            if page.grows and not page.following
            else Span(
                tr("following" if page.grows else "at the end") if page.following else "", TextStyle.DIM
            )
        )

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The rows in sight; those that do not fit give way on the cursor's far side."""
        page = self.page
        if page is None or not page.rows:
            self._shown = []
            return [row(Span(self.tr(page.empty_why) if page is not None else "", TextStyle.DIM))]
        gutter = self._gutter(page)
        lines: list[tuple[int, Row]] = []
        for number in range(len(page.rows)):
            lines += [(number, drawn) for drawn in self._drawn(page, number, gutter, width, height)]
        if len(lines) > height:
            mine = [at for at, (number, _) in enumerate(lines) if number == self.cursor]
            # From the top, but the cursor's last line is in sight; a page that follows shows its end.
            top = len(lines) - height if page.following else max(0, mine[-1] - height + 1 if mine else 0)
            lines = lines[min(top, mine[0] if mine else top) :][:height]
        self._shown = [number for number, _ in lines]
        return [drawn for _, drawn in lines]

    def _gutter(self, page: Page) -> tuple[int, int]:
        """Cells for a line's number, and for who wrote it."""
        numbers = [n for n in page.numbers if n is not None]
        wide = max(4, len(str(page.line_count or max(numbers)))) if numbers else 0
        alone = len({each.who for each in page.rows}) == 1 and not page.merged_by
        return wide, 0 if alone and (page.rows[0].who == ("",) or numbers) else who_width(page)

    def _drawn(
        self, page: Page, number: int, gutter: tuple[int, int], width: int, height: int
    ) -> Iterator[Row]:
        each = page.rows[number]
        here = number == self.cursor and not page.following
        chosen = here or self._is_selected(each)
        wide, who = gutter
        label = f"{page.numbers[number] or '':>{wide}}" if wide and number < len(page.numbers) else " " * wide
        label += (" " if wide and who else "") + (
            fit(who_text(each.who, page.nodes_of(each)), who) if who else ""
        )
        head = row(
            Span("▌" if here else "┃" if chosen else " ", TextStyle.FOCUS),
            Span(f"{label} " if label else "", TextStyle.KEY if chosen else TextStyle.DIM),
        )
        space = width - 1 - (len(label) + 1 if label else 0)
        text = text_of(each, "Enter", self.tr).expandtabs(4)
        spans = tuple(
            text_spans(
                text,
                page.query,
                page.searched,
                TextStyle.STRONG if here else TONES[each.tone],
                TONES[each.tone],
            )
        )
        if not self.wraps:
            yield (*head, *cut_spans(spans, self._side, self._side + 2 * max(space, 1)))
            return
        at = 0
        pieces = chop_cells(text, max(space, 8)) or [""]
        blank = row(
            Span("┃" if chosen else " ", TextStyle.FOCUS), Span(" " * (len(label) + 1 if label else 0))
        )
        for piece in pieces[: max(1, int(MOST_WRAPPED * height))]:
            yield (*(head if at == 0 else blank), *cut_spans(spans, at, at + len(piece)))
            at += len(piece)

    def _is_selected(self, each: LogRow) -> bool:
        here = self.row
        if self.mark is None or here is None:
            return False
        low, high = sorted((self.mark.place, here.place))
        return low <= each.place <= high

    # -- moving ------------------------------------------------------------------------------------------

    @property
    def in_sight(self) -> int:
        """How many rows are in sight."""
        return len(set(self._shown)) or 1

    def action_move(self, rows: int) -> None:
        """Move the cursor; beyond the page other rows come."""
        page = self.page
        if page is None or not page.rows:
            return
        wanted = self.cursor + rows
        if page.following and rows > 0:
            return
        if page.following:
            self.post_message(self.Frozen())
        if 0 <= wanted < len(page.rows):
            self._move_to(wanted)
        else:
            self.post_message(self.Beyond(wanted if wanted < 0 else wanted - len(page.rows) + 1))
            self.cursor = 0 if wanted < 0 else len(page.rows) - 1

    def _move_to(self, number: int) -> None:
        self.cursor = number
        self.repaint()
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        """A page up or down, one row of it kept in sight."""
        self.post_message(self.Beyond(pages * max(self.in_sight - 1, 1)))

    def action_edge(self, way: int) -> None:
        """The first line, or the newest one."""
        self.cursor = 0 if way < 0 else self.cursor
        self.post_message(self.Edge(way))

    def action_side(self, way: int) -> None:
        """Show what lies left or right."""
        self._side = max(0, self._side + way * SIDE_CELLS)
        self.repaint()

    def action_mark(self) -> None:
        """Begin a selection here, or give it up."""
        self.mark = None if self.mark is not None else self.row
        if self.page is not None and self.page.following:
            self.post_message(self.Frozen())
        self.repaint()

    def clear_mark(self) -> bool:
        """Give up the selection; whether there was one."""
        had, self.mark = self.mark is not None, None
        self.repaint()
        return had

    def toggle_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.wraps, self._side = not self.wraps, 0
        self.repaint()

    # -- the mouse ---------------------------------------------------------------------------------------

    def wheel(self, rows: int) -> None:
        """The wheel leaves the cursor."""
        self.post_message(self.Beyond(rows))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """The cursor goes where is pressed; a drag selects from there."""
        number = self._row_at(event.y)
        if number is None or event.button != 1:
            return
        self.post_message(self.Frozen())
        self.mark = None
        self.capture_mouse()
        self._move_to(number)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Extend the selection while the button is down."""
        number = self._row_at(event.y)
        if self.app.mouse_captured is not self or number is None or number == self.cursor:
            return
        self.mark = self.mark or self.row
        self._move_to(number)

    def on_mouse_up(self, _event: events.MouseUp) -> None:
        """The drag is over."""
        if self.app.mouse_captured is self:
            self.release_mouse()

    def _row_at(self, y: int) -> int | None:
        at = y - 1
        return self._shown[at] if 0 <= at < len(self._shown) else None


def _what(page: Page, tr: Tr) -> str:
    """Which logs are shown, and in which order their lines stand."""
    chosen = page.query.nodes
    logs = [log for log in page.logs if not chosen or log.node in chosen]
    logs = [log for log in logs if page.query.is_by(log.who) or log.is_mixed]
    numbers = tuple(int(log.who) for log in logs if log.who.isdigit())
    attempt = tr(f"attempt {page.attempt} of {page.attempts}") if page.attempts > 1 else ""
    if not page.merged_by:
        named = next((each.parts[0][0] for each in page.rows), page.alone)
        which = fm.short_path(str(page.logs[named].path)) if named is not None else ""
    else:
        which = (
            f"{'rank' if len(set(numbers)) == 1 else 'ranks'} {fm.ranges(tuple(set(numbers)))}"
            if numbers and not page.query.who  # a filter of ranks stands in the title by itself
            else ""
        )
        merged = tr(f"merged by {page.merged_by}")
        which = f"{tr(which)}, {merged}" if which else merged
    return " · ".join(part for part in (attempt, tr(nodes_text(page)), which) if part)
