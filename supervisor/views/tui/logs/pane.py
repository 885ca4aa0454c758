"""The dashboard's log pane: a page of the log engine that follows the newest lines, or stands where a person looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.views import format as fm
from supervisor.views.logs import commands as lc
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.logs.rows import (
    SIDE_CELLS,
    TONES,
    cut_spans,
    lines_text,
    nodes_text,
    text_of,
    text_spans,
    who_text,
    who_width,
)
from supervisor.views.tui.widgets.lists import WheelPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row


class LogPanel(WheelPanel):
    """Lines of the run's files as they come. It shows what it is given; moving is asked of whoever reads."""

    number = 4
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("j,down", "move(1)", "down", show=False),
        Binding("pageup,ctrl+u", "scroll_pages(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d", "scroll_pages(1)", "page down", show=False),
        Binding("g,home", "oldest", "oldest line", show=False),
        Binding("G,end", "follow", "newest line, follow", show=False),
        Binding("left,h", "side(-1)", "left", show=False),
        Binding("right", "side(1)", "right", show=False),
    ]

    class Moved(Message):
        """Other lines are wanted."""

        def __init__(self, move: lc.Move) -> None:
            super().__init__()
            self.move = move

    class Sized(Message):
        """Another number of lines fits."""

        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.page: lc.Page | None = None
        self._side = 0
        self._height = 0

    @property
    def ready(self) -> bool:
        """There is a page."""
        return self.page is not None

    @property
    def following(self) -> bool:
        """Whether new lines move the pane."""
        return self.page is None or self.page.following

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:  # noqa: ARG002 - lines come by `take`
        """Nothing of a snapshot."""
        return ()

    def take(self, page: lc.Page) -> None:
        """Show another page."""
        self.page = page
        self.repaint()

    def on_resize(self, _event: events.Resize) -> None:
        """Other rows fit."""
        self._fit()

    def watch_framed(self) -> None:
        """So they do without a frame."""
        super().watch_framed()
        self._fit()

    def _fit(self) -> None:
        height = max(self.size.height - (2 if self.framed else 0), 1)
        if height != self._height:
            self._height = height
            self.post_message(self.Sized(height))

    @property
    def row(self) -> LogRow | None:
        """The row that a person looks at: the match, the cause, else the last one in sight."""
        page = self.page
        if page is None or not page.rows:
            return None
        number = page.cursor if page.cursor is not None else page.cause if page.at_cause else None
        if number is None:
            number = min(len(page.rows), self._height or 1) - 1
        return page.rows[number]

    def place(self) -> lc.LogAt | None:
        """Where the row lies; None while the newest lines are followed."""
        here = self.row
        if self.page is None or here is None or (self.page.following and not self.page.at_cause):
            return None
        return self.page.place_of(here)

    # -- drawing -------------------------------------------------------------------------------------------

    def titles(self) -> tuple[Row, Row]:
        """What is shown, and whether it moves."""
        page, tr = self.page, self.tr
        if page is None:
            return EMPTY, EMPTY
        left = [
            Span(tr("log"), TextStyle.STRONG),
            Span(
                f" · {str(page.query) or tr('all ranks')}",
                TextStyle.LIVE if page.query else TextStyle.PLAIN,
            ),
        ]
        if nodes := nodes_text(page):
            left.append(Span(f" · {tr(nodes)}"))
        if page.search is not None:
            found = page.search
            count = (
                ""
                if found.ordinal is None
                else f": {tr(f'{fm.whole(found.ordinal)} of {fm.whole(found.found)}')}"
            )
            missing = tr(" (not found)") if found.done_ratio >= 1 and not found.found else ""
            left.append(Span(f" · /{page.searched.typed}{count}{missing}", TextStyle.WARN))
            if found.done_ratio < 1:
                left.append(Span(f" · {tr(f'searching… {fm.part(found.done_ratio)}')}", TextStyle.WARN))
        elif page.searched:
            left.append(Span(f" · /{page.searched.typed}", TextStyle.WARN))
        if page.doing:
            left.append(Span(f" · {tr(page.doing)}", TextStyle.WARN))
        below = fm.whole(page.below) if page.below is not None else "…"
        state = (
            Span(tr(f"at the failure · {below} below"), TextStyle.BAD)
            if page.at_cause
            else Span(tr("following" if page.grows else "at the end"), TextStyle.DIM)
            if page.following
            else Span(tr(f"frozen · {below} below"), TextStyle.WARN)
            if page.grows
            else Span(tr(f"{below} below"), TextStyle.DIM)
        )
        return tuple(left), row(
            Span(f"{tr(count)} · " if (count := lines_text(page)) else "", TextStyle.DIM), state
        )

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The rows in sight, a rule above each attempt; what does not fit gives way at the far end."""
        page = self.page
        if page is None or not page.rows:
            return [row(Span(self.tr(page.empty_why) if page is not None else "", TextStyle.DIM))]
        rows: list[Row] = []
        attempt = page.attempt_of(page.rows[0])
        for number, each in enumerate(page.rows):
            if page.attempt_of(each) != attempt:
                attempt = page.attempt_of(each)
                text = f"── {self.tr(f'attempt {attempt}')} "
                rows.append(row(Span(text + "─" * max(0, width - len(text)), TextStyle.FRAME)))
            rows.append(self._drawn(page, number, width))
        return rows[-height:] if page.following else rows[:height]

    def _drawn(self, page: lc.Page, number: int, width: int) -> Row:
        each = page.rows[number]
        is_match, is_cause = number == page.cursor and bool(page.searched), number == page.cause
        tone = TONES[each.tone]
        text = text_of(each, "O", self.tr).expandtabs(4)
        style = TextStyle.STRONG if is_match else tone
        spans = tuple(text_spans(text, page.query, page.searched, style, tone))
        if is_cause:
            spans = tuple(Span(s.text, TextStyle.ROOT if s.style is tone else s.style) for s in spans)
        who = fit(who_text(each.who, page.nodes_of(each)), who_width(page))
        head: Row = (Span(f"{who} ", TextStyle.KEY if is_match else TextStyle.DIM),)
        if is_cause:
            head = (Span(who, TextStyle.KEY), Span("▌", TextStyle.BAD))
        return (*head, *cut_spans(spans, self._side, self._side + 2 * width))

    # -- moving --------------------------------------------------------------------------------------------

    def action_move(self, rows: int) -> None:
        """Move the lines in sight; reaching the newest one follows again."""
        self.post_message(self.Moved(lc.Scroll(rows)))

    def action_scroll_pages(self, pages: int) -> None:
        """One page up or down."""
        self.action_move(pages * max(self._height - 1, 1))

    def action_oldest(self) -> None:
        """The first line."""
        self.post_message(self.Moved(lc.Start()))

    def action_follow(self) -> None:
        """The newest line."""
        self.post_message(self.Moved(lc.Follow()))

    def action_side(self, way: int) -> None:
        """Show what lies left or right."""
        self._side = max(0, self._side + way * SIDE_CELLS)
        self.repaint()
