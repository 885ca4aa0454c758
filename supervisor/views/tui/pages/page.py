"""A page of text that scrolls, composed of a snapshot; and which pages there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from supervisor.views.tui.widgets.lists import MovingPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row, wrap
from supervisor.views.tui.widgets.panel import Panel, View
from supervisor.views.wording.translate import Tr

LABEL = 12


class Page(MovingPanel):
    """Rows of any number; the keys and the wheel move them. A subclass gives `rows`."""

    heading: ClassVar[str] = ""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._top = 0
        self._height = 1
        self._count = 0
        self.pane_rows = 0  # how high the pane is, for pages that say less in a low one

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """All of the page, in rows of at most `width` cells."""
        raise NotImplementedError

    def foot(self, view: View, width: int) -> Sequence[Row]:  # noqa: ARG002 - for subclasses
        """What stays in sight at the lower edge while the page is longer than the pane."""
        return ()

    def titles(self) -> tuple[Row, Row]:
        """The page's name, and how far it was scrolled."""
        hidden = self._count - self._height
        place = f"{self._top + 1}-{min(self._top + self._height, self._count)} of {self._count}"
        right = row(Span(self.tr(place), TextStyle.DIM)) if hidden > 0 else EMPTY
        return row(Span(self.tr(self.heading), TextStyle.STRONG)), right

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The rows in sight."""
        if self.view is None:
            return []
        self.pane_rows = height
        found = self.rows(self.view, width - 2)
        foot = self.foot(self.view, width - 2) if len(found) > height else ()
        room = max(height - len(foot), 1)
        self._count, self._height = len(found), room
        self._top = min(max(self._top, 0), max(self._count - room, 0))
        shown = list(found[self._top : self._top + room])
        return [(Span(" "), *spans) for spans in (*shown, *foot)]

    def to_top(self) -> None:
        """Show the beginning: another subject."""
        self._top = 0

    def action_move(self, rows: int) -> None:
        """Scroll by rows."""
        self._top += rows
        self.repaint()

    def action_edge(self, way: int) -> None:
        """The first or the last rows."""
        self._top = 0 if way < 0 else self._count
        self.repaint()

    def action_page(self, pages: int) -> None:
        """One page up or down."""
        self.action_move(pages * max(1, self._height - 1))


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
