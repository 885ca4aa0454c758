"""The panes of the dashboard and where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widget import Widget

from supervisor.views import format as fm
from supervisor.views.model.history import Track
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.axes import axis_for
from supervisor.views.tui.charts.curves import Curve, Look, axis_word, plot
from supervisor.views.tui.charts.live import LossPanel, UsePanel, start_of
from supervisor.views.tui.dashboard.bars import NoticeBar
from supervisor.views.tui.dashboard.devices import DevicesPanel, devices_of
from supervisor.views.tui.dashboard.failure_card import FailureCard
from supervisor.views.tui.dashboard.header import HeaderPanel
from supervisor.views.tui.dashboard.layout import TRENDS_MOST, Layout, Needs, card_width, plan
from supervisor.views.tui.dashboard.ranks import RanksPanel
from supervisor.views.tui.dashboard.state_words import shows_failure
from supervisor.views.tui.dashboard.tiles import TilesPanel
from supervisor.views.tui.dashboard.timeline import AttemptsBar, TimelinePanel
from supervisor.views.tui.logs.pane import LogPanel
from supervisor.views.tui.pages.text_page import PAGES, new_page
from supervisor.views.tui.saved_layout import Kept, memory_of
from supervisor.views.tui.screen_base import KeyScreen
from supervisor.views.tui.widgets.footer import FooterBar
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row
from supervisor.views.tui.widgets.panel import Panel, View, tr_of


class PaneScreen(KeyScreen, Screen[None]):
    """All panes, arranged for the terminal's size and the run's state. `clock`: wall time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.snapshot: Snapshot | None = None
        self._clock = clock
        self._zoomed: str | None = None
        self._layout: Layout | None = None
        self._trends: dict[Widget, int] = {}  # and the place of the first curve in each

    def compose(self) -> ComposeResult:
        """All panes; the layout decides which are seen."""
        yield HeaderPanel(id="header")
        with Horizontal(id="middle"):
            with Vertical(id="left"):
                yield FailureCard(id="card")
                yield LossPanel(id="loss")
            with Vertical(id="right"):
                with Horizontal(id="charts"):
                    yield UsePanel(id="util", memory=False)
                    yield UsePanel(id="memory", memory=True)
                yield DevicesPanel(id="devices")
                yield RanksPanel(id="ranks")
        yield AttemptsBar(id="attempts")
        yield TilesPanel(id="tiles")
        with Horizontal(id="bottom"):
            yield LogPanel(id="log")
            yield TimelinePanel(id="timeline")
        yield NoticeBar(id="notice")
        yield FooterBar(id="footer")

    @property
    def kept(self) -> Kept:
        """What is remembered of a person's choices."""
        return memory_of(self.app).kept

    async def page(self, name: str) -> Panel:
        """The page of this name, made when it is first asked for; it stands above the notice."""
        for found in self.query(f"#{name}").results(Panel):
            return found
        made = new_page(name)
        made.display = False
        await self.mount(made, before=self.notice)
        if self.snapshot is not None:
            made.show(View(self.snapshot, self.snapshot.state.now(self._clock())))
        return made

    @property
    def log_panel(self) -> LogPanel:
        """The log pane."""
        return self.query_one("#log", LogPanel)

    @property
    def ranks_panel(self) -> RanksPanel:
        """The table of ranks."""
        return self.query_one("#ranks", RanksPanel)

    @property
    def notice(self) -> NoticeBar:
        """The line for people."""
        return self.query_one("#notice", NoticeBar)

    def _show(self) -> None:
        if self.snapshot is None:
            return
        view = View(self.snapshot, self.snapshot.state.now(self._clock()), tr_of(self))
        for panel in self.query(Panel):
            panel.show(view)

    def on_resize(self, _event: events.Resize) -> None:
        """Another size, another layout."""
        self._arrange()

    def on_ranks_panel_folded(self, _message: RanksPanel.Folded) -> None:
        """Another number of rows, perhaps another layout."""
        self._arrange()

    def _arrange(self) -> None:
        snapshot = self.snapshot
        log_more, side_more = self.kept.log_more, self.kept.side_more
        needs = Needs(devices=1, ranks=1, zoomed=self._zoomed, log_more=log_more, side_more=side_more)
        if snapshot is not None:
            attempt = snapshot.state.attempt
            ranks = self.ranks_panel.needed_rows(snapshot) if attempt else 1
            # Of a log that is written elsewhere no machine is known, and one rank says what the header says.
            here = snapshot.machine or any(rank.cpu or rank.rss for rank in snapshot.ranks.values())
            elsewhere = snapshot.state.mode == "observed" and not here
            never = not here and bool(snapshot.series)  # numbers of training came, and none of the machine
            needs = Needs(
                devices=(len(devices_of(snapshot)) if snapshot.gpus else 0)
                or (0 if elsewhere or never else 1 + len(snapshot.ranks)),
                ranks=0 if elsewhere and ranks <= 1 else ranks,
                gpus=bool(snapshot.gpus),
                loss=len(snapshot.metrics["loss"]) > 1,
                trends=sum(1 for _ in trends(snapshot)),
                zoomed=self._zoomed,
                log_more=log_more,
                side_more=side_more,
            )
            needs = replace(needs, card_rows=self._card_rows(snapshot, card_width(self.size.width, needs)))
        layout = plan(self.size.width, self.size.height, needs)
        if layout == self._layout:
            return
        self._layout = layout
        self._apply(layout)

    def _card_rows(self, snapshot: Snapshot, width: int) -> int:
        if not shows_failure(snapshot):
            return 0
        return self.query_one("#card", FailureCard).needed_rows(
            View(snapshot, self._clock(), tr_of(self)), width
        )

    def _apply(self, layout: Layout) -> None:
        shown = layout.shown
        self._show_trends(layout.trends, layout.trends_height)
        for name in (
            "header",
            "card",
            "loss",
            "charts",
            "devices",
            "ranks",
            "attempts",
            "tiles",
            "log",
            "timeline",
        ):
            self.query_one(f"#{name}").display = name in shown
        for page in self.query(", ".join(f"#{name}" for name in PAGES)):
            page.display = page.id in shown
        right = bool(shown & {"charts", "trends", "devices", "ranks"})
        middle = self.query_one("#middle")
        middle.display = right or bool(shown & {"card", "loss"})
        middle.styles.layout = "vertical" if layout.vertical else "horizontal"
        middle.styles.height = "1fr" if layout.middle_height is None else layout.middle_height
        left = self.query_one("#left")
        left.display = bool(shown & {"card", "loss"})
        left.styles.layout = "horizontal" if layout.loss_beside else "vertical"
        left.styles.height = layout.loss_height or "1fr"
        self.query_one("#bottom").display = bool(shown & {"log", "timeline"})
        side = self.query_one("#right")
        side.display = right
        side.styles.width = "1fr" if layout.right_width is None else layout.right_width
        devices = self.query_one("#devices", DevicesPanel)
        devices.framed = layout.framed_devices
        card, loss = self.query_one("#card", FailureCard), self.query_one("#loss", LossPanel)
        self.log_panel.framed = card.framed = layout.framed
        card.styles.height = layout.card_height or "1fr"
        loss.styles.width = layout.right_width if layout.loss_beside else "1fr"
        loss.number = None if "card" in shown else LossPanel.number
        devices.styles.height = "1fr" if layout.devices_height is None else layout.devices_height
        self.query_one("#charts").styles.height = layout.charts_height
        self.query_one("#timeline").styles.width = (
            "1fr" if not layout.timeline_width else layout.timeline_width
        )
        focused = self.focused
        if focused is None or not focused.display:
            (self.log_panel if "log" in shown else card).focus()

    def _show_trends(self, count: int, height: int) -> None:
        """Two curves a row, made when there is first room for one."""
        if count and not self._trends and self.snapshot is not None:
            view = View(self.snapshot, self.snapshot.state.now(self._clock()))
            panels = [TrendPanel(id=f"trend{place}", place=place) for place in range(TRENDS_MOST)]
            rows = [Horizontal(*panels[at : at + 2]) for at in range(0, TRENDS_MOST, 2)]
            whole = Vertical(*rows, id="trends")
            self._trends = {whole: 0, **{row: 2 * at for at, row in enumerate(rows)}}
            self._trends |= {panel: place for place, panel in enumerate(panels)}
            for panel in panels:
                panel.show(view)  # before they are mounted: a recording that stands still shows nothing twice
            self.query_one("#right").mount(whole, after="#charts")
        for widget, first in self._trends.items():
            widget.display = count > first
            if isinstance(widget, Vertical):
                widget.styles.height = height

    def _card_shown(self) -> bool:
        return self._layout is not None and "card" in self._layout.shown

    def _zoom(self, name: str | None) -> None:
        self._zoomed = name
        self._arrange()
        self._show()


# -- more curves where there is room: the most informative series ----------------------------------

# The y axis spans at least this share of the greatest value, so that noise looks like noise.
LEAST_SPAN = 0.25
# What logs of reinforcement learning call the steps of their environments a second; shown under their own name.
FRAME_RATES = frozenset({"fps", "sps"})
# What a frame takes of the row of its titles.
FRAME_CELLS = 8


class Trend(NamedTuple):
    """A series, what it is called, and how its values are written."""

    name: str
    track: Track
    say: Callable[[float | None], str]
    latest: float | None
    style: TextStyle = TextStyle.PACE
    odd: str = ""  # the word for the newest value where that is not finite


class TrendPanel(Panel):
    """One series over steps. `place`: 0 for the most informative one, 1 for the next, and so on."""

    rests = True

    def __init__(self, *, id: str, place: int) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._place = place

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The series that is drawn, and the attempts."""
        trend = self._trend(snapshot)
        return (trend.track if trend is not None else None, snapshot.state.attempts, trend and trend.odd)

    def titles(self) -> tuple[Row, Row]:
        """What is drawn and its newest value."""
        trend = self._trend(self.view.snapshot) if self.view is not None else None
        if trend is None:
            return EMPTY, EMPTY
        name = row(Span(self.tr(trend.name), TextStyle.STRONG))
        newest = row(Span(trend.say(trend.latest), trend.style))
        if trend.odd:
            newest = row(Span(self.tr(trend.odd), TextStyle.BAD))
        word = axis_word(axis_for(None, [trend.track]))
        by = Span(f" {self.tr(word)}" if word else "", TextStyle.DIM)
        has_room = cells((*name, by, *newest)) + FRAME_CELLS <= self.size.width
        return (*name, by) if has_room else name, newest

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The chart."""
        assert self.view is not None
        snapshot = self.view.snapshot
        trend, drawn = self._trend(snapshot), None
        if trend is not None:
            curve = Curve(trend.track, style=trend.style, cuts=snapshot.state.cuts)
            start_t = start_of(snapshot.state, snapshot.series.values())
            drawn = plot([curve], Look(), width, height, least_span=LEAST_SPAN, start_t=start_t)
        if drawn is None:
            return [row(Span(fit(self.tr("no reading yet"), width), TextStyle.DIM))]
        return drawn.rows

    def _trend(self, snapshot: Snapshot) -> Trend | None:
        return next((trend for at, trend in enumerate(trends(snapshot)) if at == self._place), None)


def trends(snapshot: Snapshot) -> Iterator[Trend]:
    """The series that make a curve, the most informative first; how many a second is said once."""
    metrics = snapshot.metrics
    took_s, is_derived = snapshot.step_time_s
    whole = snapshot.series
    logged = whole.get("step_time_s", ())
    fast = "tokens_per_sec" if len(whole.get("tokens_per_sec", ())) > 1 else "samples_per_sec"
    vals = metrics["val_loss"]
    frames = [name for name in whole if name.rsplit("/", 1)[-1].lower() in FRAME_RATES]
    known = [
        *(Trend(name, whole[name], fm.short, whole[name][-1].mean) for name in frames[:1] if whole[name]),
        Trend(
            "tok/s" if fast == "tokens_per_sec" else "smp/s",
            whole.get(fast, ()),
            fm.short,
            snapshot.latest(fast),
        ),
        Trend(
            "grad norm",
            metrics["grad_norm"],
            fm.short,
            snapshot.latest("grad_norm"),
            TextStyle.PLAIN,
            snapshot.not_finite("grad_norm"),
        ),
        # What was logged is there from the first step on; of the pace there are the newest gaps alone.
        Trend(
            "logged step time" if is_derived else "step time",
            logged,
            fm.seconds,
            snapshot.latest("step_time_s"),
        )
        if logged and snapshot.latest("step_time_s") is not None
        else Trend("step time", snapshot.gaps, fm.about(fm.seconds), took_s),
        _of_epochs(snapshot),
        Trend("val loss", vals, fm.loss, vals[-1].mean if vals else None, TextStyle.LOSS),
        Trend("lr", metrics["lr"], fm.rate, snapshot.latest("lr"), TextStyle.PLAIN),
    ]
    return (trend for trend in known if len(trend.track) > 1)


def _of_epochs(snapshot: Snapshot) -> Trend:
    track, is_derived = snapshot.epoch_times
    say = fm.about(fm.seconds) if is_derived else fm.seconds
    return Trend("epoch time", track, say, snapshot.epoch_time_s[0])
