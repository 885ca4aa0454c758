"""A page of text that scrolls, composed of a snapshot; and which pages there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from supervisor.run.records import Sameness
from supervisor.run.state import MomentKind, RunState
from supervisor.views.tui.logs.rows import marked
from supervisor.views.tui.pages.page_search import PageSearch
from supervisor.views.tui.widgets.lists import MovingPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row, wrap
from supervisor.views.tui.widgets.panel import COPIED_CELLS, Panel, View, copied_rows
from supervisor.views.wording.kinds import values_of
from supervisor.views.wording.translate import Tr

LABEL = 12


class ScrolledPanel(MovingPanel):
    """Rows of any number that the keys and the wheel scroll, and that can be searched. A subclass gives `texts`."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._top = 0
        self._height = 1
        self.search = PageSearch(self)

    def texts(self) -> Sequence[str]:
        """All rows."""
        raise NotImplementedError

    def row_at(self) -> int:
        """The first row in sight."""
        return self._top

    def show_row(self, index: int) -> None:
        """Scroll, where the row is not in sight."""
        if not self._top <= index < self._top + self._height:
            self._top = index - self._height // 3

    def action_move(self, rows: int) -> None:
        """Scroll by rows."""
        self._top += rows
        self.repaint()

    def action_edge(self, way: int) -> None:
        """The first or the last rows."""
        self._top = 0 if way < 0 else len(self.texts())
        self.repaint()

    def action_page(self, pages: int) -> None:
        """One page up or down."""
        self.action_move(pages * max(1, self._height - 1))


class Page(ScrolledPanel):
    """A page that is composed of a snapshot. A subclass gives `rows`."""

    heading: ClassVar[str] = ""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._all: Sequence[Row] = ()
        self.pane_rows = 0  # how high the pane is, for pages that say less in a low one

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """All of the page, in rows of at most `width` cells."""
        raise NotImplementedError

    def foot(self, view: View, width: int) -> Sequence[Row]:  # noqa: ARG002 - for subclasses
        """What stays in sight at the lower edge while the end of the page is not."""
        return ()

    def titles(self) -> tuple[Row, Row]:
        """The page's name, and how far it was scrolled."""
        count = len(self._all)
        place = f"{self._top + 1}-{min(self._top + self._height, count)} of {count}"
        right = row(Span(self.tr(place), TextStyle.DIM)) if self.scrolls else EMPTY
        right = self.search.title(self.tr) or right
        return row(Span(self.tr(self.heading), TextStyle.STRONG)), right

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The rows in sight."""
        if self.view is None:
            return []
        self.pane_rows = height
        self._all = found = self.rows(self.view, width - 2)
        in_sight = self._top >= len(found) - height  # the end of it, where the same stands at length
        foot = () if in_sight else self.foot(self.view, width - 2)
        room = max(height - len(foot), 1)
        self._height = room
        if self.search:
            self.search.renew()
        self._top = min(max(self._top, 0), max(len(found) - room, 0))
        shown = list(found[self._top : self._top + room])
        if not self.search:
            return [(Span(" "), *spans) for spans in (*shown, *foot)]
        here = self.search.at
        return [
            *(
                (Span("▸" if at == here else " ", TextStyle.WARN), *marked(spans, self.search.query))
                for at, spans in enumerate(shown, start=self._top)
            ),
            *((Span(" "), *spans) for spans in foot),
        ]

    def copied(self) -> str:
        """The whole page as plain lines; empty where there is none."""
        if self.view is None:
            return ""
        return copied_rows([self.titles()[0], *self.rows(self.view, COPIED_CELLS)])

    @property
    def scrolls(self) -> bool:
        """Whether it is longer than the pane."""
        return len(self._all) > self._height

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Scrolling, where there is more than is in sight."""
        return [("j k", "scroll", "focused.move(1)")] if self.scrolls else []

    def texts(self) -> Sequence[str]:
        """All rows."""
        return ["".join(span.text for span in spans) for spans in self._all]

    def to_top(self) -> None:
        """Show the beginning: another subject."""
        self._top = 0


def section(tr: Tr, title: str, note: str = "") -> list[Row]:
    """A blank row and a title."""
    return [
        EMPTY,
        row(Span(tr(title), TextStyle.STRONG), Span(f"  {tr(note)}" if note else "", TextStyle.DIM)),
    ]


def labelled(
    label: str,
    text: str,
    width: int,
    style: TextStyle = TextStyle.PLAIN,
    *,
    most: int = 6,
    label_cells: int = LABEL,
) -> list[Row]:
    """A label, and its text in as many rows as it takes (at most `most`)."""
    lines = wrap(text, max(width - label_cells, 10), most) or [""]
    return [
        row(Span(fit(label if not at else "", label_cells), TextStyle.DIM), Span(line, style))
        for at, line in enumerate(lines)
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


# A page is imported and made when it is first opened: the start need not wait for any.
PAGES: Final = ("failure", "metrics", "advisories", "processes", "preflight", "settings")


def new_page(name: str) -> Panel:
    """The page of this name, which is its id too.

    Raises:
        ValueError: there is none.
    """
    match name:
        case "failure":
            from supervisor.views.tui.pages.failure import FailurePage

            return FailurePage(id=name)
        case "metrics":
            from supervisor.views.tui.pages.metrics import MetricsPage

            return MetricsPage(id=name)
        case "advisories":
            from supervisor.views.tui.pages.advisories import AdvisoriesPage

            return AdvisoriesPage(id=name)
        case "processes":
            from supervisor.views.tui.pages.processes import ProcessesPage

            return ProcessesPage(id=name)
        case "preflight":
            from supervisor.views.tui.pages.settings import PreflightPage

            return PreflightPage(id=name)
        case "settings":
            from supervisor.views.tui.pages.settings import SettingsPage

            return SettingsPage(id=name)
        case _:
            raise ValueError(f"no page is called {name!r}")
