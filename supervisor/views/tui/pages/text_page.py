"""A page of text built from a snapshot, which can scroll and be searched; and the list of pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from textual.app import App

from supervisor.run.records import Sameness
from supervisor.run.state import MomentKind, RunState
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.tui.dialogs.prompts import SEARCH_HINT, AskLine
from supervisor.views.tui.logs.page import marked
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, labelled, row
from supervisor.views.tui.widgets.panel import COPIED_CELLS, MovingPanel, Panel, View, copied_rows
from supervisor.views.wording.kinds import values_of
from supervisor.views.wording.translate import Tr


class PageSearch:
    """A search on one page; false while there is none."""

    def __init__(self, page: ScrolledPanel) -> None:
        self._page = page
        self._matches: list[int] = []
        self.query = Query()
        self.at: int | None = None  # the row of the visited match
        self._start: int | None = None  # the row where the search for the first match starts

    def __bool__(self) -> bool:
        return bool(self.query)

    def renew(self) -> None:
        """The page's rows may have changed; go to the first match once there is one."""
        self._matches = [at for at, text in enumerate(self._page.texts()) if self.query.accepts(text)]
        if self.query and self._matches and self._start is not None:
            self._go(bisect_left(self._matches, self._start))
            self._start = None

    def begin(self, query: Query, start: int) -> None:
        """Start a search from a row on; an empty query ends it."""
        self.query, self.at, self._start = query, None, start
        self.renew()
        self._page.repaint()

    def step(self, way: int) -> None:
        """The next match, downward or upward; wraps around."""
        if not self._matches:
            return
        at = self.at if self.at is not None else self._page.row_at()
        place = bisect_left(self._matches, at)
        self._go(place + way if self.at is not None or way < 0 else place)
        self._page.repaint()

    def title(self, tr: Tr) -> Row:
        """The query, and the number of the visible match."""
        if not self.query:
            return EMPTY
        count = len(self._matches)
        text = (
            f"{self._matches.index(self.at) + 1} of {count}" if self.at in self._matches else f"{count} found"
        )
        return row(Span(f"/{self.query.typed}: {tr(text)}", TextStyle.WARN))

    def _go(self, place: int) -> None:
        self.at = self._matches[place % len(self._matches)]
        self._page.show_row(self.at)


def open_page_search(app: App[None], page: ScrolledPanel, changed: Callable[[], object]) -> None:
    """Search while typing; a search left open stays until it is closed."""
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


class ScrolledPanel(MovingPanel):
    """Any number of rows that the keys and the wheel scroll, with a search. A subclass provides `texts`."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._top = 0
        self._height = 1
        self.search = PageSearch(self)

    def texts(self) -> Sequence[str]:
        """All rows."""
        raise NotImplementedError

    def row_at(self) -> int:
        """The first visible row."""
        return self._top

    def show_row(self, index: int) -> None:
        """Scroll if the row is not visible."""
        if not self._top <= index < self._top + self._height:
            self._top = index - self._height // 3

    def action_move(self, rows: int) -> None:
        """Scroll by rows."""
        self._top += rows
        self.repaint()

    def action_edge(self, way: int) -> None:
        """Go to the first or the last rows."""
        self._top = 0 if way < 0 else len(self.texts())
        self.repaint()

    def action_page(self, pages: int) -> None:
        """One page up or down."""
        self.action_move(pages * max(1, self._height - 1))


class Page(ScrolledPanel):
    """A page built from a snapshot. A subclass provides `rows`."""

    heading: ClassVar[str] = ""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._all: Sequence[Row] = ()

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """The whole page, in rows of at most `width` cells."""
        raise NotImplementedError

    def titles(self) -> tuple[Row, Row]:
        """The page's name, and how far it is scrolled."""
        count = len(self._all)
        place = f"{self._top + 1}-{min(self._top + self._height, count)} of {count}"
        right = row(Span(self.tr(place), TextStyle.DIM)) if self.scrolls else EMPTY
        right = self.search.title(self.tr) or right
        return row(Span(self.tr(self.heading), TextStyle.STRONG)), right

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The visible rows."""
        if self.view is None:
            return []
        self._all = found = self.rows(self.view, width - 2)
        self._height = height
        if self.search:
            self.search.renew()
        self._top = min(max(self._top, 0), max(len(found) - height, 0))
        shown = found[self._top : self._top + height]
        if not self.search:
            return [(Span(" "), *spans) for spans in shown]
        return [
            (Span("▸" if at == self.search.at else " ", TextStyle.WARN), *marked(spans, self.search.query))
            for at, spans in enumerate(shown, start=self._top)
        ]

    def copied(self) -> str:
        """The whole page as plain lines; empty if there is none."""
        if self.view is None:
            return ""
        return copied_rows([self.titles()[0], *self.rows(self.view, COPIED_CELLS)])

    @property
    def scrolls(self) -> bool:
        """Whether it is longer than the pane."""
        return len(self._all) > self._height

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Scrolling, if there is more than is visible."""
        return [("j k", "scroll", "focused.move(1)")] if self.scrolls else []

    def texts(self) -> Sequence[str]:
        """All rows."""
        return ["".join(span.text for span in spans) for spans in self._all]

    def to_top(self) -> None:
        """Show the beginning, for another subject."""
        self._top = 0


def section(tr: Tr, title: str, note: str = "") -> list[Row]:
    """A blank row and a title."""
    return [
        EMPTY,
        row(Span(tr(title), TextStyle.STRONG), Span(f"  {tr(note)}" if note else "", TextStyle.DIM)),
    ]


def resumed_rows(state: RunState, width: int, tr: Tr) -> list[Row]:
    """Whether each resumed attempt continued the same training, in full; newest first."""
    found = [attempt.compared for attempt in reversed(state.attempts) if attempt.compared is not None]
    rows = section(tr, "after the resume", "compared with the training before it") if found else []
    for compared in found:
        differs = compared.result is Sameness.DIFFERS and not compared.asked
        text = tr.sentence("moment", MomentKind.COMPARED, values_of(compared))
        style = TextStyle.WARN if differs else TextStyle.PLAIN
        rows += labelled("", text, width, style, most=8, label_cells=0)
    return rows


# Pages are imported and created when first opened, so that the start need not wait for any.
PAGES: Final = ("failure", "metrics", "advisories", "processes", "preflight", "settings")


def new_page(name: str) -> Panel:
    """The page of this name, one of `PAGES`, which is also its id."""
    from supervisor.views.tui.pages import failure, metrics, run_pages

    made: tuple[type[Panel], ...] = (
        failure.FailurePage,
        metrics.MetricsPage,
        run_pages.AdvisoriesPage,
        run_pages.ProcessesPage,
        run_pages.PreflightPage,
        run_pages.SettingsPage,
    )
    return made[PAGES.index(name)](id=name)
