"""The panes of the dashboard: their content, which ones are visible, and which one is shown alone."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.live import LossPanel, UsePanel
from supervisor.views.tui.dashboard.layout import LOW, TRENDS_MOST, Layout, Needs, card_width, plan
from supervisor.views.tui.logs.page import LogPanel
from supervisor.views.tui.pages.text_page import PAGES, new_page
from supervisor.views.tui.panels.attempts import AttemptsBar, TimelinePanel
from supervisor.views.tui.panels.devices import DevicesPanel, devices_of
from supervisor.views.tui.panels.failure_card import FailureCard
from supervisor.views.tui.panels.header import HeaderPanel
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.panels.ranks_table import RanksPanel
from supervisor.views.tui.panels.state_words import shows_failure
from supervisor.views.tui.panels.trends import TilesPanel, TrendPanel, trends
from supervisor.views.tui.shell.request_client import Answer
from supervisor.views.tui.widgets.footer import FooterBar
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.panel import Panel, View, tr_of

PANES = ("header", "card", "loss", "charts", "devices", "ranks", "attempts", "tiles", "log", "timeline")


class Panes:
    """All panes of one run, arranged for the terminal's size and the run's state.

    Args:
        screen: their screen.
        clock: wall time.
        offer: called when the set of working keys changes.
    """

    def __init__(self, screen: Screen[None], clock: Callable[[], float], offer: Callable[[], object]) -> None:
        self.screen = screen
        self.clock = clock
        self.offer = offer
        self.snapshot: Snapshot | None = None
        self.zoomed: str | None = None
        self._layout: Layout | None = None

    def compose(self) -> ComposeResult:
        """All panes; the layout decides which are visible."""
        yield HeaderPanel(id="header")
        with Horizontal(id="middle"):
            with Vertical(id="left"):
                yield FailureCard(id="card")
                yield LossPanel(id="loss")
            with Vertical(id="right"):
                with Horizontal(id="charts"):
                    yield UsePanel(id="util", memory=False)
                    yield UsePanel(id="memory", memory=True)
                with Vertical(id="trends"):
                    for first in range(0, TRENDS_MOST, 2):
                        with Horizontal(id=f"trends{first}"):
                            yield TrendPanel(id=f"trend{first}", place=first)
                            yield TrendPanel(id=f"trend{first + 1}", place=first + 1)
                yield DevicesPanel(id="devices")
                yield RanksPanel(id="ranks")
        yield AttemptsBar(id="attempts")
        yield TilesPanel(id="tiles")
        with Horizontal(id="bottom"):
            yield LogPanel(id="log")
            yield TimelinePanel(id="timeline")
        yield NoticeBar(id="notice")
        yield FooterBar(id="footer")

    def find(self, name: str) -> Panel:
        """The pane or page with this name."""
        return self.screen.query_one(f"#{name}", Panel)

    @property
    def header(self) -> HeaderPanel:
        """The two lines at the top."""
        return self.screen.query_one(HeaderPanel)

    @property
    def card(self) -> FailureCard:
        """The failure card."""
        return self.screen.query_one(FailureCard)

    @property
    def loss(self) -> LossPanel:
        """The loss chart."""
        return self.screen.query_one(LossPanel)

    @property
    def ranks(self) -> RanksPanel:
        """The table of ranks."""
        return self.screen.query_one(RanksPanel)

    @property
    def log(self) -> LogPanel:
        """The log pane."""
        return self.screen.query_one(LogPanel)

    @property
    def notice(self) -> NoticeBar:
        """The line for people."""
        return self.screen.query_one(NoticeBar)

    @property
    def focused(self) -> Panel | None:
        """The focused pane."""
        focused = self.screen.focused
        return focused if isinstance(focused, Panel) else None

    @property
    def is_card_shown(self) -> bool:
        """Whether the failure card is visible."""
        return self._layout is not None and "card" in self._layout.shown

    async def page(self, name: str) -> Panel:
        """The page of this name, created on first use; it is above the notice."""
        for found in self.screen.query(f"#{name}").results(Panel):
            return found
        made = new_page(name)
        made.display = False
        await self.screen.mount(made, before=self.notice)
        if self.snapshot is not None:
            made.show(self._view(self.snapshot))
        return made

    # -- content -------------------------------------------------------------------------------------------

    def _view(self, snapshot: Snapshot) -> View:
        return View(snapshot, snapshot.state.now(self.clock()), tr_of(self.screen))

    def show(self) -> None:
        """Draw the newest moment."""
        if self.snapshot is not None:
            view = self._view(self.snapshot)
            for panel in self.screen.query(Panel):
                panel.show(view)

    def tick(self) -> None:
        """Update times and ages."""
        if self.snapshot is not None:
            view = self._view(self.snapshot)
            for panel in self.screen.query(Panel):
                panel.tick(view)

    def tell(self, answer: Answer) -> None:
        """Show the result of a request."""
        style = TextStyle.PLAIN if answer.good is None else TextStyle.LIVE if answer.good else TextStyle.BAD
        self.notice.say(answer.text, style)

    def report(self, answer: Answer) -> None:
        """Like `tell`, from the reading thread."""
        self.screen.app.call_later(self.tell, answer)

    # -- arrangement ---------------------------------------------------------------------------------------

    def zoom(self, name: str | None) -> None:
        """Show only one pane or page; None: all panes again."""
        self.zoomed = name
        self.arrange()
        self.show()
        self.notice.page = name
        self.notice.repaint()
        self.offer()

    def arrange(self) -> None:
        """Arrange the panes for the size of the terminal and the content."""
        size, needs = self.screen.size, self._needs()
        self.header.is_low = size.height < LOW
        layout = plan(size.width, size.height, needs)
        if layout != self._layout:
            self._layout = layout
            self._apply(layout)

    def _needs(self) -> Needs:
        needs, snapshot = Needs(1, 1, zoomed=self.zoomed), self.snapshot
        if snapshot is None:
            return needs
        ranks = self.ranks.needed_rows(snapshot) if snapshot.state.attempt else 1
        # For a log written elsewhere the machine is unknown, and a single rank shows the same as the header.
        is_here = snapshot.machine or any(rank.cpu or rank.rss for rank in snapshot.ranks.values())
        is_elsewhere = snapshot.state.mode == "observed" and not is_here
        is_unmeasured = not is_here and bool(snapshot.series)
        devices = 0 if is_elsewhere or is_unmeasured else 1 + len(snapshot.ranks)
        needs = replace(
            needs,
            devices=(len(devices_of(snapshot)) if snapshot.gpus else 0) or devices,
            ranks=0 if is_elsewhere and ranks <= 1 else ranks,
            gpus=bool(snapshot.gpus),
            loss=len(snapshot.metrics["loss"]) > 1,
            trends=sum(1 for _ in trends(snapshot)),
        )
        if not shows_failure(snapshot):
            return needs
        width = card_width(self.screen.size.width, needs)
        return replace(needs, card_rows=self.card.needed_rows(self._view(snapshot), width))

    def _apply(self, layout: Layout) -> None:
        shown, find = layout.shown, self.screen.query_one
        for name in PANES:
            find(f"#{name}").display = name in shown
        for page in self.screen.query(", ".join(f"#{name}" for name in PAGES)):
            page.display = page.id in shown
        has_right = bool(shown & {"charts", "trends", "devices", "ranks"})
        middle, left, right, curves = find("#middle"), find("#left"), find("#right"), find("#trends")
        left.display = bool(shown & {"card", "loss"})
        right.display = has_right
        middle.display = has_right or left.display
        find("#bottom").display = bool(shown & {"log", "timeline"})
        curves.display = bool(layout.trends)
        for place in range(TRENDS_MOST):
            find(f"#trends{place // 2 * 2}").display = layout.trends > place // 2 * 2
            self.find(f"trend{place}").display = layout.trends > place
        middle.styles.layout = "vertical" if layout.is_narrow else "horizontal"
        for widget, height in (
            (middle, layout.middle_height),
            (left, layout.left_height),
            (self.card, layout.card_height),
            (find("#charts"), layout.charts_height),
            (curves, layout.trends_height),
            (find("#devices"), layout.devices_height),
        ):
            widget.styles.height = "1fr" if height is None else height
        right.styles.width = "1fr" if layout.right_width is None else layout.right_width
        find("#timeline").styles.width = layout.timeline_width or "1fr"
        self.find("devices").framed = not layout.is_narrow
        self.log.framed = self.card.framed = layout.is_framed
        self.loss.number = None if "card" in shown else LossPanel.number
        focused = self.screen.focused
        if focused is None or not focused.display:
            (self.log if "log" in shown else self.card).focus()
