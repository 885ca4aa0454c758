"""A run's logs, as a dashboard pane or on a full page with a cursor, line numbers and its own keys."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar, TypeVar

from rich.cells import chop_cells
from textual import events
from textual.binding import Binding, BindingType

from supervisor.views.logs import reading as lc
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.logs.reading import BadJumpError, LogAt, Remark, parse_jump
from supervisor.views.logs.session import LogSession, Request, Scroll
from supervisor.views.logs.sources import Tone
from supervisor.views.logs.viewport import LogViewport
from supervisor.views.tui.pages.log_rows import (
    cut_spans,
    found_text,
    lines_text,
    logs_text,
    place_text,
    state_text,
    text_spans,
    who_text,
    who_width,
)
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.shell.external_editor import Spot, editor_argv, run_outside
from supervisor.views.tui.shell.prompts import SEARCH_HINT, AskLine
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row
from supervisor.views.tui.widgets.panel import WheelPanel
from supervisor.views.wording.phrases import is_stacks

T = TypeVar("T")
TONES = {
    Tone.PLAIN: TextStyle.PLAIN,
    Tone.WARN: TextStyle.WARN,
    Tone.BAD: TextStyle.BAD,
}
REMARK_STYLES = {None: TextStyle.PLAIN, True: TextStyle.LIVE, False: TextStyle.WARN}
FILTER_HINT = "words, -without, /expression/, r0-3, node:1, level:warn, stream:stderr"
JUMP_HINT = "a line (812), a step (step 1200), a time (14:52)"
# A wrapped line takes at most this share of the page, so that the next line is always within reach.
MOST_WRAPPED = 0.8


def _whole(key: str, action: str, word: str, tooltip: str) -> Binding:
    """Return a key binding for the full-page log."""
    return Binding(key, action, word, tooltip=tooltip)


class LogPanel(WheelPanel):
    """The log pane, which follows new lines. As a full page (`is_whole`), it has a cursor, a selection and line numbers."""

    number = 4
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k,up", "move(-1)", "up"),
        Binding("j,down", "move(1)", "down"),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", "page up"),
        Binding("pagedown,ctrl+d,ctrl+f", "page(1)", "page down"),
        Binding("g,home", "edge(-1)", "first line"),
        Binding("G,end", "edge(1)", "newest line, follow"),
        _whole(
            "colon", "jump", "line, time",
            "go to a line (812), a step (step 1200) or a time (14:52, 2026-11-21 14:52)",
        ),
        _whole("F", "failure", "failure", "go to the line that caused the failure"),
        _whole("left_parenthesis", "attempt(-1)", "attempt before", "the attempt before"),
        _whole("right_parenthesis", "attempt(1)", "attempt after", "the attempt after"),
        _whole("w", "wrap", "wrap", "wrap long lines, or cut them"),
        Binding("V,shift+down", "mark", "begin or end a selection"),
        _whole("y", "copy", "copy", "copy the line or the selection (V selects)"),
        _whole("c", "chart", "chart", "show this line's step on the charts"),
        _whole("e", "editor", "editor", "open the file in $EDITOR at this line"),
        Binding("escape", "plain", "end selection, give up"),
    ]  # fmt: skip

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.page: lc.Page | None = None
        self.is_whole = False
        self.wraps = False
        self.cursor = 0
        self.mark: LogRow | None = None
        self.lines_query, self.searched = Query(), Query()
        self._session: LogSession | None = None
        self._notice: NoticeBar | None = None
        self._remark: Remark | None = None
        self._height = 0
        self._jump = 0
        self._shown: list[int] = []  # the row of each visible line

    @property
    def ready(self) -> bool:
        """Whether a page has arrived."""
        return self.page is not None

    @property
    def row(self) -> LogRow | None:
        """The row under the cursor. Without a cursor, this is the row of the match or the cause, or else the last visible row."""
        page = self.page
        if page is None or not page.rows:
            return None
        number: int | None = self.cursor
        if not self.is_whole:
            number = page.cursor if page.cursor is not None else page.cause if page.at_cause else None
        if number is None:
            number = min(len(page.rows), self._height or 1) - 1
        return page.rows[number] if number < len(page.rows) else None

    def place(self) -> lc.LogAt | None:
        """Return the current row's position, or None while following new lines."""
        here = self.row
        if self.page is None or here is None or (self.page.following and not self.page.at_cause):
            return None
        return self.page.place_of(here)

    @property
    def selection(self) -> tuple[LogRow, LogRow] | None:
        """The first and last selected rows, or None if there are no rows."""
        here = self.row
        return (self.mark or here, here) if here is not None else None

    def take(self, page: lc.Page) -> None:
        """Show a new page, keeping the cursor on the same line if that line is still visible."""
        before, shown = self.row, self.page
        self.page = page
        if self.is_looking:
            self._forget_remark()
        last = max(len(page.rows) - 1, 0)
        if page.following:
            self.cursor = last
        elif page.cursor is not None and page.jump != self._jump:
            # A page made for fewer rows may not contain the line. Then the next page completes the jump.
            self.cursor, self._jump = page.cursor, page.jump
        else:
            self.cursor = self._found_again(before, min(self.cursor, last))
        self.repaint()
        if shown is None or shown.key_facts != page.key_facts:
            self.post_message(self.KeysChanged())

    def _found_again(self, before: LogRow | None, otherwise: int) -> int:
        rows = self.page.rows if self.page is not None else ()
        if before is None or not rows:
            return otherwise
        index, line = before.parts[0]
        for number, each in enumerate(rows):
            if any(i == index and x.offset == line.offset for i, x in each.parts):
                return number
        if before.place <= rows[0].place:
            return 0
        return len(rows) - 1 if before.place > rows[-1].place else otherwise

    def on_resize(self, _event: events.Resize) -> None:
        """Request as many rows as fit after the resize."""
        self._fit()

    def watch_framed(self) -> None:
        """Request as many rows as fit after the frame appears or disappears."""
        super().watch_framed()
        self._fit()

    def _fit(self) -> None:
        height = max(self.size.height - (2 if self.framed else 0), 1)
        if self.size.height and height != self._height:  # no size before the first layout
            self._height = height
            self.resize(height)

    def show_whole(self, on: bool) -> None:
        """Switch between the full page with its own keys and the pane with the latest attempt."""
        if on != self.is_whole:
            self.is_whole, self.mark = on, None
            page = self.page
            if page is not None and page.attempt < page.attempts and not on:
                self.ask(LogViewport.follow)
            self.repaint()

    # -- the session ---------------------------------------------------------------------------------------

    def connect(self, session: LogSession, notice: NoticeBar) -> None:
        """Connect to the session that answers requests and the notice bar that shows remarks."""
        self._session, self._notice = session, notice

    def ask(self, request: Request) -> None:
        """Send a request to the session, which answers with a page."""
        self._forget_remark()
        if self._session is not None:
            self._session.ask(request)

    def resize(self, rows: int) -> None:
        """Request a different number of rows, keeping the row under the cursor visible."""
        here = self.frozen_row
        if self._session is not None:
            self._session.tell(lambda view: view.resize(rows, here))

    @property
    def is_looking(self) -> bool:
        """Whether the latest remark says that work is in progress."""
        return self._remark is not None and self._remark.good is None

    def report(self, remark: Remark) -> None:
        """Show a remark until it fades, another request is sent or the work it reports is done."""
        was_looking, self._remark = self.is_looking, remark
        if self._notice is not None:
            self._notice.say(remark.text, REMARK_STYLES[remark.good])
        if was_looking != self.is_looking:
            self.post_message(self.KeysChanged())

    def _forget_remark(self) -> None:
        if self._remark is not None and self._notice is not None:
            was_looking = self.is_looking
            self._notice.withdraw(self._remark.text)
            self._remark = None
            if was_looking:
                self.post_message(self.KeysChanged())

    @property
    def following(self) -> bool:
        """Whether the page scrolls as new lines arrive."""
        return self.page is None or self.page.following

    @property
    def frozen_row(self) -> LogRow | None:
        """The row under the cursor, or None while following new lines."""
        return None if self.following else self.row

    def freeze_word(self) -> str:
        """Return the freeze key's label, or "" if the key would do nothing because the log has stopped growing."""
        grows = self.page is None or self.page.grows
        if self.following:
            return "freeze" if grows else ""
        return "follow" if grows else "to the end"

    def toggle_follow(self, on: bool | None = None) -> None:
        """Freeze the page or follow new lines. `on` says whether to follow; None toggles."""
        follows = not self.following if on is None else on
        self.ask(lambda view: view.follow(follows))

    # -- drawing -----------------------------------------------------------------------------------------

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the full page's keys, with copy first while there is a selection."""
        keys = [
            ("/", "search", "search"),
            ("f", "filter", "filter"),
            (":", "line, time", "focused.jump"),
            *([("F", "failure", "focused.failure")] if self._cause() is not None else []),
            *([("( )", "attempt", "focused.attempt(-1)")] if self._has_attempts else []),
            ("w", "cut lines" if self.wraps else "wrap", "focused.wrap"),
            ("y", "copy", "focused.copy"),
            ("c", "chart", "focused.chart"),
            ("e", "editor", "focused.editor"),
        ]
        if self.mark is not None:
            keys.sort(key=lambda key: key[0] != "y")
        return keys if self.is_whole else []

    def closes(self) -> str:
        """Return a label for what Esc closes here: a selection, or a running search if no search or filter is set."""
        if self.mark is not None:
            return "end selection"
        return "give up" if self.is_looking and not self.searched and not self.lines_query else ""

    def titles(self) -> tuple[Row, Row]:
        """Describe what is shown and whether the page follows new lines."""
        page, tr = self.page, self.tr
        if page is None:
            return EMPTY, EMPTY
        left = [Span(tr("log"), TextStyle.STRONG)]
        which = logs_text(page, tr, brief=not self.is_whole)
        if not self.is_whole and not page.query:
            left.append(Span(f" · {tr('all ranks')}"))
        left += [Span(f" · {which}")] if which else []
        left += [Span(f" · {page.query}", TextStyle.LIVE)] if page.query else []
        left += [Span(f" · {found_text(page, tr)}", TextStyle.WARN)] if page.searched else []
        counts = [place_text(page, self.cursor)] if self.is_whole else []
        counts += [lines_text(page)] if page.shown is not None or not self.is_whole else []
        text = "".join(f"{tr(each)} · " for each in counts if each)
        state, style = state_text(page)
        return tuple(left), row(Span(text, TextStyle.DIM), Span(tr(state), style))

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the visible rows. If they do not all fit, those farthest from the cursor are dropped."""
        page = self.page
        if page is None or not page.rows:
            self._shown = []
            return [row(Span(self.tr(page.empty_why) if page is not None else "", TextStyle.DIM))]
        gutter = self._gutter(page)
        lines: list[tuple[int, Row]] = []
        for number in range(len(page.rows)):
            lines += [(number, drawn) for drawn in self._drawn(page, number, gutter, width, height)]
        if len(lines) > height:
            mine = [at for at, (number, _) in enumerate(lines) if number == self.cursor and self.is_whole]
            # Start at the top, but show the cursor's last line. A following page shows its end.
            top = len(lines) - height if page.following else max(0, mine[-1] - height + 1 if mine else 0)
            lines = lines[min(top, mine[0] if mine else top) :][:height]
        self._shown = [number for number, _ in lines]
        return [drawn for _, drawn in lines]

    def _gutter(self, page: lc.Page) -> tuple[int, int]:
        """Return the widths of the line-number and rank columns, in cells."""
        if not self.is_whole:
            return 0, who_width(page)
        numbers = [n for n in page.numbers if n is not None]
        wide = max(4, len(str(page.line_count or max(numbers)))) if numbers else 0
        alone = len({each.who for each in page.rows}) == 1 and not page.merged_by
        return wide, 0 if alone and (page.rows[0].who == ("",) or numbers) else who_width(page)

    def _drawn(
        self, page: lc.Page, number: int, gutter: tuple[int, int], width: int, height: int
    ) -> Iterator[Row]:
        each = page.rows[number]
        is_cause = number == page.cause
        here = not page.following and number == (self.cursor if self.is_whole else page.cursor)
        chosen = here or is_cause or self._is_selected(each)
        wide, who = gutter
        label = f"{page.numbers[number] or '':>{wide}}" if wide and number < len(page.numbers) else " " * wide
        label += (" " if wide and who else "") + (
            fit(who_text(each.who, page.nodes_of(each)), who) if who else ""
        )
        sign = "▌" if is_cause or (here and self.is_whole) else "┃" if chosen and self.is_whole else " "
        head = row(
            Span(label, TextStyle.KEY if chosen else TextStyle.DIM),
            Span(sign, TextStyle.BAD if is_cause else TextStyle.FOCUS),
        )
        tone = TONES[each.tone]
        text = each.text.expandtabs(4)
        style = TextStyle.STRONG if here else tone
        spans = tuple(text_spans(text, page.query, page.searched, style, tone))
        if is_cause:
            spans = tuple(Span(s.text, TextStyle.ROOT if s.style is tone else s.style) for s in spans)
        space = max(width - len(label) - 1, 1)
        if not self.wraps:
            yield (*head, *cut_spans(spans, 0, 2 * space))
            return
        at = 0
        pieces = chop_cells(text, max(space, 8)) or [""]
        for piece in pieces[: max(1, int(MOST_WRAPPED * height))]:
            yield (
                *(head if at == 0 else row(Span(" " * (len(label) + 1)))),
                *cut_spans(spans, at, at + len(piece)),
            )
            at += len(piece)

    def _is_selected(self, each: LogRow) -> bool:
        here = self.row
        if self.mark is None or here is None:
            return False
        low, high = sorted((self.mark.place, here.place))
        return low <= each.place <= high

    # -- moving ------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's own signature
        """Check whether a key is available. Most keys need the full-page log."""
        match action:
            case "plain":
                return bool(self.closes())
            case "failure":
                return self.is_whole and self._cause() is not None
            case "attempt":
                return self.is_whole and self._has_attempts
            case "jump" | "wrap" | "mark" | "copy" | "chart" | "editor":
                return self.is_whole
            case _:
                return True

    @property
    def _has_attempts(self) -> bool:
        return self.page is not None and self.page.attempts > 1

    def action_move(self, rows: int) -> None:
        """Move the cursor, or scroll if it is at the page's edge or there is no cursor. Reaching the end resumes following."""
        page = self.page
        if page is None or not page.rows or (page.following and rows > 0 and not page.at_cause):
            return
        wanted = self.cursor + rows
        if not self.is_whole:
            self.ask(Scroll(rows))
            return
        if page.following:
            self.ask(freeze)
        if 0 <= wanted < len(page.rows):
            self._move_to(wanted)
        else:
            self.ask(Scroll(wanted if wanted < 0 else wanted - len(page.rows) + 1))
            self.cursor = 0 if wanted < 0 else len(page.rows) - 1

    def _move_to(self, number: int) -> None:
        self.cursor = number
        self.repaint()

    def action_page(self, pages: int) -> None:
        """Scroll up or down by one page, keeping one row of overlap."""
        in_sight = len(set(self._shown)) or 1
        self.ask(Scroll(pages * max(in_sight - 1, 1)))

    def action_edge(self, way: int) -> None:
        """Go to the first or latest line."""
        self.cursor = 0 if way < 0 else self.cursor
        self.ask(LogViewport.to_start if way < 0 else LogViewport.follow)

    def action_jump(self) -> None:
        """Prompt for a line, step or time and go there."""
        here = self.row

        def entered(text: str) -> str:
            if not text.strip():
                return ""
            try:
                at = parse_jump(text)
            except BadJumpError as error:
                return str(error)
            self.ask(lambda view: view.to_place(at, here))
            return ""

        self.app.push_screen(AskLine("go to", hint=JUMP_HINT, entered=entered))

    def action_failure(self) -> None:
        """Go to the line that caused the failure."""
        cause = self._cause()
        if cause is not None:
            self.show_only(Query(), None)
            self.ask(lambda view: view.to_place(cause))

    def _cause(self) -> LogAt | None:
        """Return the line that caused the failure of the visible attempt, or else of the latest attempt that has such a line."""
        attempts = self.view.snapshot.state.attempts if self.view is not None else ()
        shown = [a for a in attempts if self.page is not None and a.number == self.page.attempt]
        for attempt in [*shown, *reversed(attempts)]:
            cause = attempt.verdict.cause if attempt.verdict is not None else None
            if cause is not None and cause.line is not None and not is_stacks(cause.path):
                return LogAt(attempt=attempt.number, path=cause.path, line=cause.line)
        return None

    def action_attempt(self, way: int) -> None:
        """Show the logs of the previous or next attempt."""
        self.ask(lambda view: view.other_attempt(way))

    # -- the mouse ---------------------------------------------------------------------------------------

    def wheel(self, rows: int) -> None:
        """Scroll without moving the cursor."""
        self.ask(Scroll(rows))

    def on_click(self, event: events.Click) -> None:
        """Place the cursor at the click."""
        at = event.y - 1
        if self.is_whole and 0 <= at < len(self._shown):
            self.ask(freeze)
            self.mark = None
            self._move_to(self._shown[at])

    # -- selecting and copying ---------------------------------------------------------------------------

    def action_mark(self) -> None:
        """Start a selection at the cursor, or clear the current one."""
        self.mark = None if self.mark is not None else self.row
        if self.page is not None and self.page.following:
            self.ask(freeze)
        self.repaint()

    def action_plain(self) -> None:
        """Clear the selection, or else cancel any work in progress."""
        if self.mark is not None:
            self.action_mark()
        else:
            self.ask(freeze)  # a new request ends the current work

    def action_wrap(self) -> None:
        """Toggle between wrapping and truncating long lines."""
        self.wraps = not self.wraps
        self.repaint()

    def action_copy(self) -> None:
        """Copy the selection, or else the line under the cursor, to the clipboard."""
        chosen = self.selection
        if chosen is not None:
            self.mark = None
            self.ask(lambda view: view.copied(*chosen))
            self.repaint()

    def action_chart(self) -> None:
        """Show this line's step on the charts."""
        here = self.row
        if here is not None:
            self.ask(lambda view: view.point(here))

    def action_editor(self) -> None:
        """Open the log in the user's editor."""
        page, here = self.page, self.row
        if page is None or here is None:
            return
        index, line = here.parts[0]
        number = page.numbers[self.cursor] if self.cursor < len(page.numbers) else None
        argv = editor_argv(Spot(os.path.abspath(page.logs[index].path), line.offset, number), os.environ)
        trouble = argv if isinstance(argv, str) else run_outside(self.app, argv)
        if trouble:
            self.report(Remark(trouble, good=False))

    # -- searching -----------------------------------------------------------------------------------------

    def open_search(self) -> None:
        """Search as the user types. Enter on an unchanged query goes to the next match."""
        start = self.frozen_row
        before = self.searched.typed

        def typed(text: str) -> str:
            return self.search(text, start)

        def closed(text: str | None) -> None:
            if text is None and before:
                self.search(before, start)
            elif not text:
                self.search("", None)
            elif text == before:
                self.match(-1)

        self.app.push_screen(AskLine("search", before, typed, SEARCH_HINT), closed)

    def search(self, typed: str, start: LogRow | None) -> str:
        """Search upward from `start`, or from the latest line if it is None. Return an error message, if any."""
        try:
            query = Query.search(typed)
        except BadQueryError as error:
            return str(error)
        if query != self.searched:
            self.searched = query
            self.ask(lambda view: view.find(query, start))
            self.post_message(self.KeysChanged())
        return ""

    def match(self, way: int) -> None:
        """Go to the next match up (-1) or down (1)."""
        page, start = self.page, self.frozen_row
        if page is not None and page.cursor is not None and start is page.rows[page.cursor]:
            start = None  # no move since the last match, whose page may not have arrived yet
        self.ask(lambda view: view.match(start, way))

    # -- filters -------------------------------------------------------------------------------------------

    def open_filter(self) -> None:
        """Filter the lines as the user types."""
        before, start = self.lines_query, self.frozen_row

        def typed(text: str) -> str:
            return self.filter(text, start)

        def closed(text: str | None) -> None:
            if text is None:
                self.show_only(before, start)

        self.app.push_screen(AskLine("filter", f"{before.typed} ".lstrip(), typed, FILTER_HINT), closed)

    def filter(self, typed: str, row: LogRow | None) -> str:
        """Show only the lines that match a filter. Return an error message, if any."""
        try:
            query = Query.parse(typed)
        except BadQueryError as error:
            return str(error)
        self.show_only(query, row)
        return ""

    def show_only(self, query: Query, row: LogRow | None) -> None:
        """Show only the lines that match `query`, keeping `row` visible. Do nothing if `query` is already in effect."""
        if query != self.lines_query:
            self.lines_query = query
            self.ask(lambda view: view.show(query, row))
            self.post_message(self.KeysChanged())

    def next_rank(self, way: int) -> None:
        """Cycle through all ranks, then rank 0 alone, rank 1 alone and so on."""
        names = self.page.ranks if self.page is not None else ()
        if names:
            chosen = _next(names, self.lines_query.who, way)
            self.show_only(self.lines_query.of(*chosen), self.frozen_row)
        elif self.page is not None:
            self.report(Remark("the log does not say which rank wrote a line", good=False))

    def next_node(self, numbers: Sequence[int], way: int) -> None:
        """Cycle through all nodes, then node 0 alone, node 1 alone and so on."""
        chosen = _next(numbers, self.lines_query.nodes, way)
        self.show_only(self.lines_query.at(*chosen), self.frozen_row)

    def clear(self) -> None:
        """Clear the search, or the filter if there is no search."""
        if self.searched:
            self.search("", None)
        else:
            self.show_only(Query(), self.frozen_row)


def freeze(view: LogViewport) -> None:
    """Keep the page in place when new lines arrive."""
    view.follow(on=False)


def _next(names: Sequence[T], now: Collection[T], way: int) -> Sequence[T]:
    """Return what to show after `now`, cycling through everything (empty), the first item, the second item and so on."""
    circle: list[Sequence[T]] = [(), *((name,) for name in names)]
    at = circle.index(tuple(now)) if tuple(now) in circle else 0
    return circle[(at + way) % len(circle)]
