"""What is looked at on the dashboard: panes, pages, the log, another run. Nothing here asks a keeper for anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import events
from textual.binding import Binding

from supervisor.run.index import RunNotFound
from supervisor.views.logs.place import LogAt, LogPoint
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.live import LossPanel
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.dashboard.bars import FooterBar, Hint
from supervisor.views.tui.dashboard.condition_words import leave_word
from supervisor.views.tui.dashboard.panes import PaneScreen
from supervisor.views.tui.dashboard.ranks import RanksPanel
from supervisor.views.tui.dialogs.prompts import AskLine
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.kept import memory_of
from supervisor.views.tui.logs.buffer import LogFilter
from supervisor.views.tui.pages.book import PAGES
from supervisor.views.tui.request_client import Answer, Desk
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.panel import Panel, tr_of
from supervisor.views.wording.places import is_stacks

if TYPE_CHECKING:
    from supervisor.views.tui.logs.screen import LogScreen
    from supervisor.views.tui.pages.metrics import OtherRun


class LookingScreen(PaneScreen):
    """Moves between what can be seen.

    Args:
        desk: the run, and where requests are put.
        feeder: the reading thread.
        clock: wall time.
        back: goes back to the list of runs; None where the run was not opened from one.
    """

    def __init__(
        self,
        desk: Desk,
        feeder: Feeder[Snapshot],
        clock: Callable[[], float],
        back: Callable[[], None] | None,
    ) -> None:
        super().__init__(clock)
        self._desk = desk
        self._feeder = feeder
        self._back = back
        self._log_screen: LogScreen | None = None

    def tell(self, answer: Answer) -> None:
        """Say what became of a request."""
        ink = TextStyle.PLAIN if answer.good is None else TextStyle.LIVE if answer.good else TextStyle.BAD
        self.notice.say(answer.text, ink)

    def _told(self, answer: Answer) -> None:
        """From the reading thread: say it on the screen's."""
        self.app.call_later(self.tell, answer)

    def offers(self, binding: Binding) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the footer shows a key that may be pressed."""
        return True

    def leave_word(self, snapshot: Snapshot) -> str:
        """What the footer says of leaving."""
        return leave_word(snapshot)

    def _offer(self) -> None:
        """The footer's keys, from the live bindings."""
        hints = [
            Hint(
                active.binding.key_display or active.binding.key,
                active.binding.description,
                active.binding.action,
            )
            for active in self.active_bindings.values()
            if active.binding.show and active.enabled and active.node is self and self.offers(active.binding)
        ]
        unique = list(dict.fromkeys(hint for hint in hints if hint.action != "leave"))
        word = self.leave_word(self.snapshot) if self.snapshot else "leave"
        self.query_one("#footer", FooterBar).offer(tuple(unique), Hint("q", word, "leave"))

    def _zoom(self, name: str | None) -> None:
        super()._zoom(name)
        self.notice.page = name
        self.notice.repaint()
        self._offer()

    def on_descendant_focus(self, _event: events.DescendantFocus) -> None:
        """Another pane has the keys: other keys do something."""
        self._offer()

    def action_back(self) -> None:
        """Clear the search, else the filter, else the zoom; else go back to the list of runs."""
        log = self.log_panel
        if log.search:
            log.set_search("")
            log.action_follow()
        elif log.buffer.filter:
            log.set_filter(LogFilter())
        elif self._zoomed is None and self._back is not None:
            self._back()
        else:
            self._zoom(None)

    def action_pane(self, name: str) -> None:
        """Go to a pane; one that has no room here is zoomed."""
        wanted = self.query_one("#card" if name == "loss" and self._card_shown() else f"#{name}", Panel)
        if self._zoomed is not None:
            self._zoom(None)
        if not wanted.display or not (wanted.parent and getattr(wanted.parent, "display", True)):
            self._zoom(wanted.id)
        wanted.focus()

    async def action_page(self, name: str) -> None:
        """Show a page alone; the same key again goes back."""
        if self._zoomed == name:
            self._zoom(None)
            return
        page = await self.page(name)
        self._zoom(name)
        page.focus()

    def action_commands(self) -> None:
        """All commands, to be found by their names."""
        from supervisor.views.tui.commands import Palette

        self.app.push_screen(Palette(placeholder=tr_of(self)("what should happen?")))

    def open_beside(self, other: str) -> None:
        """Show the metrics, with those of another run (a path, an id or a part of it) beside them."""
        self._feeder.submit(partial(self._load_beside, other))

    def _load_beside(self, text: str) -> None:
        """In the reading thread."""
        from supervisor.views.tui.runs.compare import load_other

        try:
            other = load_other(self._desk.run, text)
        except RunNotFound as error:
            self._told(Answer(f"compare: {error}", False))
            return
        self.app.call_later(self._lay_beside, other)

    async def _lay_beside(self, other: OtherRun | None) -> None:
        if self._zoomed != "metrics":
            await self.action_page("metrics")
        from supervisor.views.tui.pages.metrics import MetricsPage

        self.query_one("#metrics", MetricsPage).compare_with(other)

    def action_compare(self) -> None:
        """Lay another run's series beside these; an empty answer takes them away."""

        def closed(text: str | None) -> None:
            if text is not None and text.strip():
                self.open_beside(text.strip())
            elif text is not None:
                self.call_later(self._lay_beside, None)

        self.app.push_screen(AskLine("compare with (a run's id or a part of it; empty: none)"), closed)

    def action_zoom(self) -> None:
        """The pane that has the keys alone, or all again."""
        focused = self.focused
        if self._zoomed is not None:
            self._zoom(None)
        elif isinstance(focused, Panel):
            self._zoom(focused.id)

    def action_size(self, log: int, side: int) -> None:
        """Give the log or the right column more room, or less; remembered."""
        memory = memory_of(self.app)
        before, kept = self._layout, memory.kept
        memory.remember(replace(kept, log_more=kept.log_more + log, side_more=kept.side_more + side))
        self._arrange()
        if self._layout == before:  # at its limit: what could not be shown is not remembered
            memory.remember(kept)
        self._show()

    def action_freeze(self) -> None:
        """Let the log stand still, or follow."""
        self.log_panel.toggle_follow()

    def action_open_reports(self) -> None:
        """In the log, show torchrun's own traceback line by line, or as one line again."""
        self.log_panel.open_reports()

    def action_search(self) -> None:
        """Look for words in the log while they are typed."""
        self._leave_page()
        log = self.log_panel

        def typed(text: str) -> None:
            log.set_search(text)

        def closed(text: str | None) -> None:
            if not text:
                log.set_search("")
            self._offer()

        self.app.push_screen(AskLine("search", log.search, typed), closed)

    def _leave_page(self) -> None:
        if self._zoomed in PAGES:
            self._zoom(None)

    def action_match(self, way: int) -> None:
        """The next match, back or onward."""
        self.log_panel.set_search(self.log_panel.search, way=way)

    def action_filter(self) -> None:
        """Show only lines with these words, of these ranks."""
        self._leave_page()
        log = self.log_panel
        before = log.buffer.filter

        def typed(text: str) -> None:
            log.set_filter(LogFilter.parse(text))

        def closed(text: str | None) -> None:
            log.set_filter(before if text is None else LogFilter.parse(text))

        self.app.push_screen(AskLine("filter (words, r0 or r0-3 for ranks)", before.typed, typed), closed)

    def action_rank(self, way: int) -> None:
        """The log of one rank: none, 0, 1, … and round again."""
        attempt = self.snapshot.state.attempt if self.snapshot else None
        names = (
            [str(view.rank if view.rank is not None else n) for n, view in sorted(attempt.ranks.items())]
            if attempt
            else []
        )
        if not names:
            return
        log = self.log_panel
        circle: list[frozenset[str]] = [frozenset(), *(frozenset([name]) for name in names)]
        now = circle.index(log.buffer.filter.who) if log.buffer.filter.who in circle else 0
        log.set_filter(LogFilter(log.buffer.filter.text, circle[(now + way) % len(circle)]))

    def action_open_log(self) -> None:
        """The whole log: at the cause while that is looked at, else at the line in sight; stacks where they are the cause."""
        from supervisor.views.tui.pages.failure import FailurePage, cause_of

        looked_at = self._zoomed == "failure"
        cause = self.query_one("#failure", FailurePage).place() if looked_at else None
        if (
            cause is None
            and self._card_shown()
            and self._zoomed in {None, "card"}
            and self.snapshot is not None
        ):
            cause = cause_of(self.snapshot.state.attempt)
            cause = cause if cause is not None and is_stacks(cause.path) else None
        if cause is not None and is_stacks(cause.path):
            self._feeder.submit(partial(self._load_stacks, cause))
            return
        self.open_log(cause or self.log_panel.place())

    def _load_stacks(self, cause: LogAt) -> None:
        """In the reading thread."""
        from supervisor.views.model.nearby import where_it_lies
        from supervisor.views.tui.pages.stacks_screen import read_stacks

        path = where_it_lies(self._desk.run, cause.attempt or 1, cause.path or "")
        try:
            lines = read_stacks(path)
        except OSError as error:
            self._told(Answer(f"stacks: {error.strerror}: {path}", False))
            return
        self.app.call_later(self._open_stacks, f"artifacts/{path.name}", lines, cause.line)

    def _open_stacks(self, name: str, lines: tuple[str, ...], at: int | None) -> None:
        from supervisor.views.tui.pages.stacks_screen import StackScreen

        def closed(to_log: bool | None) -> None:
            if to_log:
                self.open_log(self.log_panel.place())

        if self.app.screen is self:  # nothing else was opened meanwhile
            self.app.push_screen(StackScreen(name, lines, at), closed)

    def open_log(self, at: LogAt | None = None) -> None:
        """Open the log screen at a place; None: at the newest line."""
        snapshot = self.snapshot
        if snapshot is None or self._log_screen is not None:
            return
        from supervisor.views.tui.logs.screen import (
            LogScreen,
        )  # two hundredths of a second that the start need not wait

        def closed(point: LogPoint | None) -> None:
            self._log_screen = None
            if point is not None:
                self._point_at(point)

        screen = LogScreen(self._desk.node, snapshot.state, at=at, typed=self.log_panel.buffer.filter.typed)
        self._log_screen = screen
        self.app.push_screen(screen, closed)

    def _point_at(self, point: LogPoint) -> None:
        """Show a line's step on the chart."""
        loss = self.query_one("#loss", LossPanel)
        if not loss.show_at(point.step, point.t, point.attempt):
            known = f"step {point.step:g}" if point.step is not None else "that time"
            self.tell(Answer(f"the chart has no point at {known}", False))
        elif loss.display:
            loss.focus()

    def on_log_panel_looked_back(self) -> None:
        """The lines from before the opening are read now."""
        self._feeder.look_back()

    def on_ranks_panel_chosen(self, message: RanksPanel.Chosen) -> None:
        """Enter on a rank shows its log."""
        self._zoom(None)
        self.log_panel.set_filter(LogFilter("", frozenset([message.who])))
        self.log_panel.focus()

    def on_chart_panel_chosen(self, message: ChartPanel.Chosen) -> None:
        """Enter on a point of a chart shows its line."""
        point = message.point
        self.open_log(LogAt(attempt=point.attempt, step=point.step, t=point.t))

    def on_footer_bar_pressed(self, message: FooterBar.Pressed) -> None:
        """A click on a hint is its key."""
        self.call_later(self.run_action, message.action)

    def _can_go_back(self) -> bool:
        if not self.is_mounted:
            return False
        log = self.log_panel
        return bool(self._zoomed or log.search or log.buffer.filter or self._back)
