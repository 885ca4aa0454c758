"""The controls of a log view: search, filter, rank, node; the same for the dashboard's pane and the log screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from textual.app import App

from supervisor.run.state import RunState
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.logs.reading import Page, Remark
from supervisor.views.logs.session import LogSession, Request
from supervisor.views.logs.sources import NodeLogs
from supervisor.views.tui.dialogs.prompts import SEARCH_HINT, AskLine
from supervisor.views.tui.logs.page import LogPanel
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.widgets.paint import TextStyle

T = TypeVar("T")
FILTER_HINT = "words, -without, /expression/, r0-3, node:1, level:warn, stream:stderr"
REMARK_STYLES = {None: TextStyle.PLAIN, True: TextStyle.LIVE, False: TextStyle.WARN}


class LogControls:
    """Sends requests to the session of one view, and shows its answers.

    Args:
        session: reads for the view.
        panel: shows the pages; its requests go to the session.
        notice: shows remarks.
        changed: called when the effect of keys may have changed.
    """

    def __init__(
        self, session: LogSession, panel: LogPanel, notice: NoticeBar, changed: Callable[[], object]
    ) -> None:
        self.session = session
        self.query, self.searched = Query(), Query()
        self._panel, self._notice = panel, notice
        self._changed = changed
        self._remark: Remark | None = None
        panel.ask, panel.resized = self.ask, self.resize

    @property
    def page(self) -> Page | None:
        """The visible page."""
        return self._panel.page

    def take(self, page: Page) -> None:
        """Show another page."""
        before = self.page
        self._panel.take(page)
        if self.is_looking:
            self._forget_remark()
        if before is None or before.key_facts != page.key_facts:
            self._changed()

    @property
    def is_looking(self) -> bool:
        """Whether the newest remark reports work in progress."""
        return self._remark is not None and self._remark.good is None

    def report(self, remark: Remark) -> None:
        """Show a remark until it fades, another request is made, or the reported work is done."""
        was_looking, self._remark = self.is_looking, remark
        self._notice.say(remark.text, REMARK_STYLES[remark.good])
        if was_looking != self.is_looking:
            self._changed()

    def _forget_remark(self) -> None:
        if self._remark is not None:
            self._notice.withdraw(self._remark.text)
            was_looking, self._remark = self.is_looking, None
            if was_looking:
                self._changed()

    def ask(self, request: Request) -> None:
        """Send a request that is answered by a page."""
        self._forget_remark()
        self.session.ask(request)

    def update(
        self, state: RunState, recorded_t: float | None = None, nodes: tuple[NodeLogs, ...] = ()
    ) -> None:
        """Pass on the run's state, which lists its logs."""
        self.session.tell(lambda view: view.update(state, recorded_t, nodes))

    def resize(self, rows: int) -> None:
        """Another number of rows fits; the one with the cursor stays in sight."""
        row = self.frozen_row
        self.session.tell(lambda view: view.resize(rows, row))

    @property
    def following(self) -> bool:
        """Whether new lines move the page."""
        return self.page is None or self.page.following

    @property
    def frozen_row(self) -> LogRow | None:
        """The row under the cursor; None while following the newest lines."""
        return None if self.following else self._panel.row

    def freeze_word(self) -> str:
        """What the freeze key does; empty if nothing, because no more lines come."""
        grows = self.page is None or self.page.grows
        if self.following:
            return "freeze" if grows else ""
        return "follow" if grows else "to the end"

    def toggle_follow(self, on: bool | None = None) -> None:
        """Freeze, or follow; `on` says which."""
        follows = not self.following if on is None else on
        self.ask(lambda view: view.follow(follows))

    # -- searching -----------------------------------------------------------------------------------------

    def open_search(self, app: App[None]) -> None:
        """Search while typing. Enter on unchanged words goes to the next match."""
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

        app.push_screen(AskLine("search", before, typed, SEARCH_HINT), closed)

    def search(self, typed: str, start: LogRow | None) -> str:
        """Search from a row back; None: from the newest line. Returns an error, if any."""
        try:
            query = Query.search(typed)
        except BadQueryError as error:
            return str(error)
        if query != self.searched:
            self.searched = query
            self.ask(lambda view: view.find(query, start))
            self._changed()
        return ""

    def match(self, way: int) -> None:
        """The next match up (-1) or down (1)."""
        page, start = self.page, self.frozen_row
        if page is not None and page.cursor is not None and start is page.rows[page.cursor]:
            start = None  # nobody moved since the previous match, whose page may still be on its way
        self.ask(lambda view: view.match(start, way))

    # -- filters -------------------------------------------------------------------------------------------

    def open_filter(self, app: App[None]) -> None:
        """Filter the lines while typing."""
        before, start = self.query, self.frozen_row

        def typed(text: str) -> str:
            return self.filter(text, start)

        def closed(text: str | None) -> None:
            if text is None:
                self.show_only(before, start)

        app.push_screen(AskLine("filter", f"{before.typed} ".lstrip(), typed, FILTER_HINT), closed)

    def filter(self, typed: str, row: LogRow | None) -> str:
        """Show only the lines that a typed filter accepts. Returns an error, if any; then nothing changes."""
        try:
            query = Query.parse(typed)
        except BadQueryError as error:
            return str(error)
        self.show_only(query, row)
        return ""

    def show_only(self, query: Query, row: LogRow | None) -> None:
        """Show only these lines; the row stays in sight. A query already in effect is not started again."""
        if query != self.query:
            self.query = query
            self.ask(lambda view: view.show(query, row))
            self._changed()

    def next_rank(self, way: int) -> None:
        """Show a single rank: none, 0, 1, … and round again."""
        names = self.page.ranks if self.page is not None else ()
        if names:
            chosen = _next([frozenset(), *(frozenset([name]) for name in names)], self.query.who, way)
            self.show_only(self.query.of(*chosen), self.frozen_row)
        elif self.page is not None:
            self.report(Remark("the log does not say which rank wrote a line", good=False))

    def next_node(self, numbers: Sequence[int], way: int) -> None:
        """Show a single node: none, 0, 1, … and round again."""
        chosen = _next([frozenset(), *(frozenset([number]) for number in numbers)], self.query.nodes, way)
        self.show_only(self.query.at(*chosen), self.frozen_row)

    def clear(self) -> bool:
        """Clear the search, or else the filter; False if there was neither."""
        if self.searched:
            self.search("", None)
        elif self.query:
            self.show_only(Query(), self.frozen_row)
        else:
            return False
        return True


def _next(circle: Sequence[T], now: T, way: int) -> T:
    """The choice after the present one."""
    at = circle.index(now) if now in circle else 0
    return circle[(at + way) % len(circle)]
