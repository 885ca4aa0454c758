"""Searching a page: which of its rows hold what was typed, and which of these is in sight."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from textual.app import App

from supervisor.views.filter_words import BadQueryError
from supervisor.views.logs.query import Query
from supervisor.views.tui.dialogs.prompts import SEARCH_HINT, AskLine
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, row
from supervisor.views.wording.translate import Tr


class Searchable(Protocol):
    """A page that can be searched."""

    search: PageSearch

    def texts(self) -> Sequence[str]:
        """Its rows, as they are searched."""

    def row_at(self) -> int:
        """The row from which a search begins."""

    def show_row(self, index: int) -> None:
        """Bring a row in sight."""

    def repaint(self) -> None:
        """Paint what has changed."""


class PageSearch:
    """What is looked for on one page; false while nothing is."""

    def __init__(self, page: Searchable) -> None:
        self._page = page
        self._hits: list[int] = []
        self.query = Query()
        self.at: int | None = None  # the row that was gone to
        self._start: int | None = None  # the row from which the first match is looked for

    def __bool__(self) -> bool:
        return bool(self.query)

    def renew(self) -> None:
        """The page's rows may be others; the first match is gone to once there is one."""
        self._hits = [at for at, text in enumerate(self._page.texts()) if self.query.accepts(text)]
        if self.query and self._hits and self._start is not None:
            self._go(bisect_left(self._hits, self._start))
            self._start = None

    def begin(self, query: Query, start: int) -> None:
        """Look for something, from a row on; the empty query ends the search."""
        self.query, self.at, self._start = query, None, start
        self.renew()
        self._page.repaint()

    def step(self, way: int) -> None:
        """The next match further down, or up; after the last comes the first."""
        if not self._hits:
            return
        at = self.at if self.at is not None else self._page.row_at()
        place = bisect_left(self._hits, at)
        self._go(place + way if self.at is not None or way < 0 else place)
        self._page.repaint()

    def title(self, tr: Tr) -> Row:
        """What is looked for, and which of how many matches is in sight."""
        if not self.query:
            return EMPTY
        count = len(self._hits)
        text = f"{self._hits.index(self.at) + 1} of {count}" if self.at in self._hits else f"{count} found"
        return row(Span(f"/{self.query.typed}: {tr(text)}", TextStyle.WARN))

    def _go(self, place: int) -> None:
        self.at = self._hits[place % len(self._hits)]
        self._page.show_row(self.at)


def open_page_search(app: App[None], page: Searchable, changed: Callable[[], object]) -> None:
    """Search while something is typed; what is left open is looked for until it is closed."""
    search, start = page.search, page.row_at()
    before = search.query

    def typed(text: str) -> str:
        try:
            search.begin(Query.search(text), start)
        except BadQueryError as error:
            return str(error)
        changed()
        return ""

    def closed(text: str | None) -> None:
        if text is None:
            search.begin(before, start)
        elif not text:
            search.begin(Query(), start)
        changed()

    app.push_screen(AskLine("search", before.typed, typed, SEARCH_HINT), closed)
