"""The list of pages, and a scrollable text page built from a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from supervisor.run.records import Sameness
from supervisor.run.state import RunState
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, labelled, row
from supervisor.views.tui.widgets.panel import UNWRAPPED_CELLS, MovingPanel, Panel, View
from supervisor.views.wording.kinds import values_of
from supervisor.views.wording.translate import Tr


class Page(MovingPanel):
    """A page built from a snapshot. Subclasses implement `rows`."""

    heading: ClassVar[str] = ""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._all: Sequence[Row] = ()
        self._top = 0
        self._height = 1

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """Return every row of the page, each at most `width` cells wide."""
        raise NotImplementedError

    def titles(self) -> tuple[Row, Row]:
        """Return the page's name and scroll position."""
        count = len(self._all)
        place = f"{self._top + 1}-{min(self._top + self._height, count)} of {count}"
        right = row(Span(self.tr(place), TextStyle.DIM)) if self.scrolls else EMPTY
        return row(Span(self.tr(self.heading), TextStyle.STRONG)), right

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the visible rows."""
        if self.view is None:
            return []
        self._all = found = self.rows(self.view, width - 2)
        self._height = height
        self._top = min(max(self._top, 0), max(len(found) - height, 0))
        return [(Span(" "), *spans) for spans in found[self._top : self._top + height]]

    def copied(self) -> str:
        """Return the whole page as plain, unwrapped lines, or "" if there is no page."""
        rows = self.rows(self.view, UNWRAPPED_CELLS) if self.view is not None else ()
        return self._copied_below_name(rows)

    @property
    def scrolls(self) -> bool:
        """Whether the page is longer than the pane."""
        return len(self._all) > self._height

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the scroll keys if the page is longer than the pane."""
        return [("j k", "scroll", "focused.move(1)")] if self.scrolls else []

    def action_move(self, rows: int) -> None:
        """Scroll by rows."""
        self._top += rows
        self.repaint()

    def action_edge(self, way: int) -> None:
        """Jump to the top or bottom."""
        self._top = 0 if way < 0 else len(self._all)
        self.repaint()

    def action_page(self, pages: int) -> None:
        """Move one page up or down."""
        self.action_move(pages * max(1, self._height - 1))


def section(tr: Tr, title: str, note: str = "") -> list[Row]:
    """Return a blank row followed by a title."""
    return [
        EMPTY,
        row(Span(tr(title), TextStyle.STRONG), Span(f"  {tr(note)}" if note else "", TextStyle.DIM)),
    ]


def resumed_rows(state: RunState, width: int, tr: Tr) -> list[Row]:
    """Say in full sentences whether each resumed attempt continued the same training run, starting with the latest."""
    found = [attempt.compared for attempt in reversed(state.attempts) if attempt.compared is not None]
    rows = section(tr, "after the resume", "compared with the training before it") if found else []
    for compared in found:
        differs = compared.result is Sameness.DIFFERS and not compared.asked
        text = tr.sentence("moment", "resume_compared", values_of(compared))
        style = TextStyle.WARN if differs else TextStyle.PLAIN
        rows += labelled("", text, width, style, most=8, label_cells=0)
    return rows


# Pages are imported and created when first opened, so that the start does not wait for them.
PAGES: Final = ("failure", "metrics", "advisories", "processes", "preflight", "settings", "times")


def new_page(name: str) -> Panel:
    """Create the page called `name`, which is one of `PAGES` and becomes the page's id."""
    from supervisor.views.tui.pages import failure, metrics, run_pages

    made: tuple[type[Panel], ...] = (
        failure.FailurePage,
        metrics.MetricsPage,
        run_pages.AdvisoriesPage,
        run_pages.ProcessesPage,
        run_pages.PreflightPage,
        run_pages.SettingsPage,
        run_pages.TimesPage,
    )
    return made[PAGES.index(name)](id=name)
