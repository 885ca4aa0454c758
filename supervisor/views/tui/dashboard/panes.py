"""The dashboard's panes: their content, which of them fit in its two layouts, and which one is zoomed.

A narrow terminal has one column: the loss or the failure card, a line per device, and the log. A wide one has two
columns above the log. As the terminal shrinks, panes disappear in this order: timeline, usage charts, tiles,
ranks, devices beyond four, loss chart. Header, log, notice and footer stay. A card takes only the rows it needs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.live import LossPanel, UsePanel
from supervisor.views.tui.pages.log_pane import LogPanel
from supervisor.views.tui.pages.text_page import PAGES, new_page
from supervisor.views.tui.panels.devices import DevicesPanel, devices_of
from supervisor.views.tui.panels.failure_card import FailureCard
from supervisor.views.tui.panels.header import HeaderPanel, TilesPanel
from supervisor.views.tui.panels.notice import NoticeBar, TimelinePanel
from supervisor.views.tui.panels.ranks_table import RanksPanel
from supervisor.views.tui.panels.state_words import shows_failure
from supervisor.views.tui.shell.feeder import Answer
from supervisor.views.tui.shell.screen_base import FooterBar
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.panel import Panel, View, tr_of

PANES = ("header", "card", "loss", "charts", "devices", "ranks", "tiles", "log", "timeline")
ALWAYS = frozenset(["header", "notice", "footer"])
WIDE_FROM = 100
# From this width on the timeline is beside the log, and a failure card beside the other panes.
ROOMY_FROM = 150
LOW = 30
LOG_LEAST = 3
CHARTS_LEAST = 6
RANKS_LEAST = 5
# The least height of a card beside other panes.
CARD_BESIDE_RIGHT = 20


class Layout(msgspec.Struct, frozen=True):
    """The panes to show. `heights` (in rows) and `widths` (in cells) are keyed by pane id; other panes share the rest."""

    shown: frozenset[str]
    heights: dict[str, int] = {}
    widths: dict[str, int] = {}
    is_narrow: bool = False


class Needs(msgspec.Struct, frozen=True):
    """What the layout depends on besides the terminal size, in rows. `card_rows` is 0 if there is no failure card.

    `gpus` is true if the devices are GPUs, which have charts.
    """

    devices: int
    ranks: int
    gpus: bool = True
    card_rows: int = 0
    zoomed: str | None = None


def plan(width: int, height: int, needs: Needs) -> Layout:
    """Return the layout for a terminal of `width` by `height` cells."""
    if needs.zoomed is not None:
        return Layout(ALWAYS | {needs.zoomed})
    return _narrow(height, needs) if width < WIDE_FROM else _wide(width, height, needs)


def _narrow(height: int, needs: Needs) -> Layout:
    """Lay out a single column."""
    room = height - 4
    shown = set(ALWAYS | {"log"} | ({"tiles"} if height >= LOW else set()))
    devices = left = 0
    if needs.card_rows:
        left = min(max(room - 7, 6), needs.card_rows, room)
        if room - left < LOG_LEAST:
            left = room  # a log needs at least one line
            shown.remove("log")
        shown.add("card")
    else:
        devices = min(needs.devices, 4 if height >= 20 else 1)
        devices = devices if room - devices >= LOG_LEAST else 0
        if room >= 15:
            left = min(max(8, room * 2 // 5), max(room - devices - 5, 6))
        shown |= ({"loss"} if left else set()) | ({"devices"} if devices else set())
    # The loss or the card is above the devices.
    heights = {"middle": left + devices, "left": left, "devices": devices}
    return Layout(frozenset(shown), heights, is_narrow=True)


def _wide(width: int, height: int, needs: Needs) -> Layout:
    """Lay out two columns above the log. The usage charts get any rows that the ranks table does not need."""
    room = height - (5 if height >= LOW else 4)
    shown = set(ALWAYS | {"log"} | ({"tiles"} if height >= LOW else set()))
    shown |= {"timeline"} if width >= ROOMY_FROM else set()
    middle = max(room - max(7, room * (33 if width >= ROOMY_FROM else 36) // 100), 8)
    has_right = bool(needs.devices + needs.ranks)
    if needs.card_rows:
        has_right = _is_beside_card(width, needs)
        middle = min(max(room - 8, 8), max(needs.card_rows, CARD_BESIDE_RIGHT if has_right else 8))
    shown.add("card" if needs.card_rows else "loss")
    devices = charts = 0
    if has_right:
        if needs.devices:
            devices = max(3, min(needs.devices + 2, middle - CHARTS_LEAST - RANKS_LEAST, 10))
            shown.add("devices")
        left = middle - devices
        if needs.ranks and left >= RANKS_LEAST:
            shown.add("ranks")
        below = max(needs.ranks + 3, RANKS_LEAST) if needs.ranks else 0
        if needs.gpus and needs.devices and left >= CHARTS_LEAST + min(below, RANKS_LEAST):
            charts = left if not below else max(CHARTS_LEAST, min(left - below, left * 7 // 10))
            shown.add("charts")
    heights = {"middle": middle, "devices": devices, "charts": charts}
    widths = {"right": _right_width(width), "timeline": min(72, width * 36 // 100)}
    return Layout(frozenset(shown), heights, widths)


def _is_beside_card(width: int, needs: Needs) -> bool:
    """Check whether other panes fit in a column beside the failure card."""
    return width >= ROOMY_FROM and bool(needs.devices + needs.ranks)


def _right_width(width: int) -> int:
    return min(max(66, width * 45 // 100), width * 58 // 100)


class Panes:
    """All panes for one run, arranged according to the terminal size and the run's state.

    Args:
        screen: the screen that contains the panes.
        clock: returns wall time.
        offer: called when the set of available keys changes.
    """

    def __init__(self, screen: Screen[None], clock: Callable[[], float], offer: Callable[[], object]) -> None:
        self.screen = screen
        self.clock = clock
        self.offer = offer
        self.snapshot: Snapshot | None = None
        self.zoomed: str | None = None
        self._layout: Layout | None = None
        self.header = HeaderPanel(id="header")
        self.card = FailureCard(id="card")
        self.loss = LossPanel(id="loss")
        self.ranks = RanksPanel(id="ranks")
        self.log = LogPanel(id="log")
        self.notice = NoticeBar(id="notice")

    def compose(self) -> ComposeResult:
        """Yield all panes. The layout decides which panes are visible."""
        yield self.header
        with Horizontal(id="middle"):
            with Vertical(id="left"):
                yield self.card
                yield self.loss
            with Vertical(id="right"):
                with Horizontal(id="charts"):
                    yield UsePanel(id="util", memory=False)
                    yield UsePanel(id="memory", memory=True)
                yield DevicesPanel(id="devices")
                yield self.ranks
        yield TilesPanel(id="tiles")
        with Horizontal(id="bottom"):
            yield self.log
            yield TimelinePanel(id="timeline")
        yield self.notice
        yield FooterBar(id="footer")

    def find(self, name: str) -> Panel:
        """Return the pane or page with this name."""
        return self.screen.query_one(f"#{name}", Panel)

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
        """Return the named page, creating it above the notice on first use."""
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
        """Draw the latest snapshot."""
        if self.snapshot is not None:
            view = self._view(self.snapshot)
            for panel in self.screen.query(Panel):
                panel.show(view)

    def tick(self) -> None:
        """Update the displayed times and ages."""
        if self.snapshot is not None:
            view = self._view(self.snapshot)
            for panel in self.screen.query(Panel):
                panel.tick(view)

    def tell(self, answer: Answer) -> None:
        """Show the result of a request."""
        style = TextStyle.PLAIN if answer.good is None else TextStyle.LIVE if answer.good else TextStyle.BAD
        self.notice.say(answer.text, style)

    def report(self, answer: Answer) -> None:
        """Show the result of a request. Called from the reader thread."""
        self.screen.app.call_later(self.tell, answer)

    # -- arrangement ---------------------------------------------------------------------------------------

    def zoom(self, name: str | None) -> None:
        """Show only one pane or page, or all panes if `name` is None."""
        self.zoomed = name
        self.log.show_whole(name == "log")
        self.arrange()
        self.show()
        self.notice.page = name
        self.notice.repaint()
        self.offer()

    def arrange(self) -> None:
        """Arrange the panes to suit their content and the terminal size."""
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
        # The machine of an external log is unknown, and for a single rank the table would repeat the header.
        is_here = snapshot.machine or any(rank.cpu or rank.rss for rank in snapshot.ranks.values())
        is_elsewhere = snapshot.state.mode == "observed" and not is_here
        is_unmeasured = not is_here and bool(snapshot.series)
        devices = 0 if is_elsewhere or is_unmeasured else len(devices_of(snapshot)) or 1
        needs = replace(
            needs,
            devices=len(devices_of(snapshot)) if snapshot.gpus else devices,
            ranks=0 if is_elsewhere and ranks <= 1 else ranks,
            gpus=bool(snapshot.gpus),
        )
        if not shows_failure(snapshot):
            return needs
        width = self.screen.size.width
        width -= _right_width(width) if _is_beside_card(width, needs) else 0
        return replace(needs, card_rows=self.card.needed_rows(self._view(snapshot), width))

    def _apply(self, layout: Layout) -> None:
        shown, find = layout.shown, self.screen.query_one
        for name in PANES:
            find(f"#{name}").display = name in shown
        for page in self.screen.query(", ".join(f"#{name}" for name in PAGES)):
            page.display = page.id in shown
        has_right = bool(shown & {"charts", "devices", "ranks"})
        middle, left = find("#middle"), find("#left")
        left.display = bool(shown & {"card", "loss"})
        find("#right").display = has_right
        middle.display = has_right or left.display
        find("#bottom").display = bool(shown & {"log", "timeline"})
        middle.styles.layout = "vertical" if layout.is_narrow else "horizontal"
        for name in ("middle", "left", "charts", "devices"):
            find(f"#{name}").styles.height = layout.heights.get(name, "1fr")
        for name in ("right", "timeline"):
            find(f"#{name}").styles.width = layout.widths.get(name, "1fr")
        self.find("devices").framed = not layout.is_narrow
        focused = self.screen.focused
        if focused is None or not focused.display:
            (self.log if "log" in shown else self.card).focus()
