"""The dashboard: what its keys do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.command import CommandPalette, Provider

from supervisor.run.control import RequestArgs
from supervisor.run.events import RequestKind
from supervisor.views.logplace import LogAt, LogPoint
from supervisor.views.snapshot import Snapshot
from supervisor.views.tui.actions import ACTING, cost, current_batch, possible, question, suggested_batch
from supervisor.views.tui.commands import KeyCommands
from supervisor.views.tui.desk import Answer, Desk
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.keys import GROUPS, KEYS, action_name
from supervisor.views.tui.logbuffer import LogFilter
from supervisor.views.tui.pages.failure import failures
from supervisor.views.tui.screens.batch import BatchScreen
from supervisor.views.tui.screens.edit import Edited, EditScreen, current_arguments
from supervisor.views.tui.screens.help import HelpLine, HelpScreen
from supervisor.views.tui.screens.panes import PAGES, PaneScreen
from supervisor.views.tui.screens.prompts import AskLine, Confirm
from supervisor.views.tui.widgets.bars import FooterBar, Hint
from supervisor.views.tui.widgets.charts import LossPanel
from supervisor.views.tui.widgets.paint import Ink
from supervisor.views.tui.widgets.panel import Panel, View
from supervisor.views.tui.widgets.ranks import RanksPanel
from supervisor.views.tui.widgets.words import leave_word

if TYPE_CHECKING:
    from supervisor.views.tui.screens.log import LogScreen

TICK_S = 1.0


class Dashboard(PaneScreen):
    """One run on one screen.

    Args:
        desk: where requests are put.
        feeder: the reading thread; requests are put in it too.
        clock: wall time.
        read_only: no requests.
        adopt: what adopts a run whose keeper died; None where that is not offered.
        back: goes back to the list of runs; None where the run was not opened from one.
    """

    BINDINGS: ClassVar[list[BindingType]] = KEYS
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {KeyCommands}

    def __init__(
        self,
        desk: Desk,
        feeder: Feeder[Snapshot],
        clock: Callable[[], float],
        *,
        read_only: bool = False,
        adopt: Callable[[], None] | None = None,
        back: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(clock)
        self._desk = desk
        self._feeder = feeder
        self._read_only = read_only
        self._adopt = adopt
        self._back = back
        self._possible: frozenset[str] = frozenset()
        self._log_screen: LogScreen | None = None

    def on_mount(self) -> None:
        """Begin to tick; the log has the keys."""
        notice = self.notice
        notice.can_adopt, notice.read_only = self._adopt is not None, self._read_only
        self._arrange()
        self._offer()
        self.log_panel.focus()
        self.set_interval(TICK_S, self._tick)

    def take(self, snapshot: Snapshot) -> None:
        """Show a new moment of the run."""
        self.snapshot = snapshot
        self.log_panel.take(snapshot.logs)
        if self._log_screen is not None:
            self._log_screen.take(snapshot.state)
        for answer in self._desk.answers(snapshot.state, self._clock()):
            self.tell(answer)
        self._possible = possible(snapshot, read_only=self._read_only, can_adopt=self._adopt is not None)
        self._arrange()
        self._offer()
        self._show()

    def tell(self, answer: Answer) -> None:
        """Say what became of a request."""
        ink = Ink.PLAIN if answer.good is None else Ink.LIVE if answer.good else Ink.BAD
        self.notice.say(answer.text, ink)

    def _tick(self) -> None:
        """Times and ages move once a second while something lives."""
        if self.snapshot is None or self.snapshot.state.is_over:
            return
        for answer in self._desk.answers(self.snapshot.state, self._clock()):
            self.tell(answer)
        view = View(self.snapshot, self._clock())
        for panel in self.query(Panel):
            if panel.uses_clock:
                panel.show(view)

    def _offer(self) -> None:
        """The footer's keys, from the live bindings."""
        hints = [
            Hint(
                active.binding.key_display or active.binding.key,
                active.binding.description,
                active.binding.action,
            )
            for active in self.active_bindings.values()
            if active.binding.show and active.enabled and active.node is self
        ]
        unique = list(dict.fromkeys(hint for hint in hints if hint.action != "leave"))
        word = leave_word(self.snapshot) if self.snapshot else "leave"
        self.query_one("#footer", FooterBar).offer(tuple(unique), Hint("q", word, "leave"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what a keeper would do now, or what changes something here, is possible."""
        name = str(parameters[0]) if action == "ask" else action
        if "failure" in {name, *parameters}:
            return self.snapshot is not None and bool(failures(self.snapshot.state))
        if name == "hold" and self._zoomed is not None:
            return False  # Esc goes back from here first: nobody holds a run by leaving a page
        if name in ACTING:
            return name in self._possible
        if action == "back":
            return self._can_go_back()
        if action == "match":
            return bool(self.is_mounted and self.log_panel.search)
        return True

    def _can_go_back(self) -> bool:
        if not self.is_mounted:
            return False
        log = self.log_panel
        return bool(self._zoomed or log.search or log.buffer.filter or self._back)

    # -- looking ------------------------------------------------------------------------------------------

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

    def action_page(self, name: str) -> None:
        """Show a page alone; the same key again goes back."""
        if self._zoomed == name:
            self._zoom(None)
            return
        self._zoom(name)
        self.query_one(f"#{name}", Panel).focus()

    def action_commands(self) -> None:
        """All commands, to be found by their names."""
        self.app.push_screen(CommandPalette(placeholder="what should happen?"))

    def action_zoom(self) -> None:
        """The pane that has the keys alone, or all again."""
        focused = self.focused
        if self._zoomed is not None:
            self._zoom(None)
        elif isinstance(focused, Panel):
            self._zoom(focused.id)

    def action_freeze(self) -> None:
        """Let the log stand still, or follow."""
        self.log_panel.toggle_follow()

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
        """The whole log, at the line in sight."""
        self.open_log(self.log_panel.place())

    def open_log(self, at: LogAt | None = None) -> None:
        """Open the log screen at a place; None: at the newest line."""
        snapshot = self.snapshot
        if snapshot is None or self._log_screen is not None:
            return
        from supervisor.views.tui.screens.log import (
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

    def on_ranks_panel_chosen(self, message: RanksPanel.Chosen) -> None:
        """Enter on a rank shows its log."""
        self._zoom(None)
        self.log_panel.set_filter(LogFilter("", frozenset([message.who])))
        self.log_panel.focus()

    def on_footer_bar_pressed(self, message: FooterBar.Pressed) -> None:
        """A click on a hint is its key."""
        self.call_later(self.run_action, message.action)

    def action_help(self) -> None:
        """All keys."""
        self.app.push_screen(HelpScreen(self._help_lines()))

    def _help_lines(self) -> list[HelpLine]:
        lines = [
            HelpLine(
                title, binding.key_display or binding.key, binding.tooltip, self._does_something(binding)
            )
            for group, title in GROUPS.items()
            for binding in KEYS
            if isinstance(binding, Binding) and (binding.id or "").startswith(f"{group}.")
        ]
        inside = self.focused.BINDINGS if isinstance(self.focused, Panel) else []
        lines += [
            HelpLine(GROUPS["move"], binding.key.replace(",", "  "), binding.description, True)
            for binding in inside
            if isinstance(binding, Binding)
        ]
        return lines

    def _does_something(self, binding: Binding) -> bool:
        return bool(self.check_action(action_name(binding), ()))

    # -- acting -------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Leave; training goes on."""
        self.app.exit()

    def action_adopt(self) -> None:
        """Let a new keeper take the run over."""
        if self._adopt is not None:
            self.tell(Answer("adopting the run…", None))
            self._feeder.submit(self._adopt)

    def action_ask(self, kind: str) -> None:
        """Ask the keeper for what the kind of request says."""
        self._ask(RequestKind(kind))

    def action_note(self) -> None:
        """Mark the timeline."""

        def closed(text: str | None) -> None:
            if text and text.strip():
                self._send(RequestKind.NOTE, RequestArgs(text=text.strip()))

        self.app.push_screen(AskLine("note"), closed)

    def action_smaller_batch(self) -> None:
        """Restart with another batch."""
        snapshot = self.snapshot
        now = current_batch(snapshot) if snapshot else None
        wanted = suggested_batch(snapshot) if snapshot else None
        if snapshot is None or now is None or wanted is None:
            return

        def closed(number: int | None) -> None:
            if number is not None:
                self._send(RequestKind.RESTART_WITH, RequestArgs(micro_batch=number))

        self.app.push_screen(BatchScreen(now, wanted.micro_batch_per_rank, cost(snapshot)), closed)

    def action_edit(self) -> None:
        """Restart with other arguments or environment."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.run_file is None:
            return

        def closed(edited: Edited | None) -> None:
            if edited is not None:
                self._send(RequestKind.RESTART_WITH, RequestArgs(argv=edited.argv, env=edited.env))

        record = snapshot.run_file
        before = current_arguments(record, snapshot.state)
        self.app.push_screen(EditScreen(record.job.entry, before, cost(snapshot)), closed)

    def _ask(self, kind: RequestKind) -> None:
        """Send a request, after a question where something would be lost."""
        asked = question(kind, self.snapshot) if self.snapshot else None
        if asked is None:
            self._send(kind)
            return

        def closed(yes: bool | None) -> None:
            if yes:
                self._send(kind)

        self.app.push_screen(Confirm(asked), closed)

    def _send(self, kind: RequestKind, args: RequestArgs | None = None) -> None:
        attempt = self.snapshot.state.attempt if self.snapshot else None
        number = attempt.number if attempt and kind is not RequestKind.NOTE else None
        told = self._told
        self._feeder.submit(self._desk.sender(kind, number, args, self._clock(), told))

    def _told(self, answer: Answer) -> None:
        """From the reading thread: say it on the screen's."""
        self.app.call_later(self.tell, answer)
