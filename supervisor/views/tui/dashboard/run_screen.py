"""The dashboard, which shows a run on one screen: panes, requests to the keeper, navigation and playback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from supervisor.job.spec import Unread
from supervisor.run.state import HeldOpen
from supervisor.views.logs import reading as lc
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.dashboard.acting import GROUPS, KEYS, PLAYBACK, VETOES, Requests
from supervisor.views.tui.dashboard.looking import Looking
from supervisor.views.tui.dashboard.panes import Panes
from supervisor.views.tui.dashboard.playback import Playback
from supervisor.views.tui.pages.text_page import PAGES
from supervisor.views.tui.panels.notice import recommended
from supervisor.views.tui.panels.possible_actions import ACTING, ANSWER_KEYS
from supervisor.views.tui.panels.ranks_table import RanksPanel
from supervisor.views.tui.panels.state_words import HANG, RESTART, WAIT, countdown, leave_word, shows_failure
from supervisor.views.tui.shell.feeder import Answer, RunAccess
from supervisor.views.tui.shell.help import HelpLine, HelpScreen, bindings_of, lines_of
from supervisor.views.tui.shell.screen_base import (
    TICK_S,
    FooterBar,
    Hint,
    KeyScreen,
    key_commands,
    silence_of,
)
from supervisor.views.tui.widgets.panel import tr_of

if TYPE_CHECKING:
    from textual.command import Provider

PLAYBACK_TICK_S = 0.25
PLAYBACK_FIRST = frozenset({"play", "fact(1)", "fact(-1)", "speed(1)"})
# Beside a failure card, these keys come before keys that only change the view.
RESTARTS = frozenset({"smaller_batch", "edit", "continue_run", "ask('restart')", "ask('stop')"})
LOOKS = frozenset({"back", "node", "open_code", "copy", "match"})
"""Actions that change the view and are available only in some states."""
COUNTDOWNS = {
    HANG: "a hang is about to be ended, Esc on the dashboard keeps waiting",
    RESTART: "the run is about to restart, Esc on the dashboard stops that",
    WAIT: "the run that waits for you is about to end, Esc on the dashboard keeps waiting",
}


class Dashboard(KeyScreen, Screen[None]):
    """The screen for a single run.

    Args:
        access: how to reach the run.
        clock: returns wall time.
        back: returns to the list of runs, or None if the run was not opened from the list.
        name: the run's name in the index, or empty if it has none.
        playback: controls for a recording, or None to show the run as it is now.
    """

    BINDINGS: ClassVar[list[BindingType]] = KEYS
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {key_commands}

    def __init__(
        self,
        access: RunAccess,
        clock: Callable[[], float],
        *,
        back: Callable[[], None] | None = None,
        name: str = "",
        playback: Playback | None = None,
    ) -> None:
        super().__init__()
        self._access, self._name_given, self.playback = access, name, playback
        self.panes = Panes(self, clock, self._offer)
        self.logs = self.panes.log
        self.looking = Looking(self.panes, access, self._deliver_log, back)
        self.requests = Requests(self.panes, access)
        self._take_actions(self.looking, self.requests, playback)
        self._first: Snapshot | None = None
        self._is_composed = False

    def _take_actions(self, *parts: object) -> None:
        """Copy the parts' `action_…` methods to the screen, where Textual looks for them."""
        for part in parts:
            for name in dir(part):
                if name.startswith("action_"):
                    setattr(self, name, getattr(part, name))

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest snapshot."""
        return self.panes.snapshot

    # -- life cycle ----------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Yield the panes. A recording's playback bar goes above the notice."""
        for widget in self.panes.compose():
            if widget.id == "notice" and self.playback is not None:
                yield self.playback.bar
            yield widget

    def on_mount(self) -> None:
        """Start the timers and focus the log."""
        self._is_composed = True
        notice, header = self.panes.notice, self.panes.header
        notice.read_only, notice.recorded = self._access.read_only, self._access.is_recorded
        header.name_given = self._name_given
        self.panes.log.focus()
        self.looking.start_reading()
        if self._first is not None:
            self.take(self._first)
            self._first = None
        else:
            self.panes.arrange()
            self._offer()
        self.set_interval(TICK_S, self._tick)
        if self.playback is not None:
            self.playback.begin(self.panes, self._access.feeder)
            self.set_interval(PLAYBACK_TICK_S, self.playback.tick)

    def on_unmount(self) -> None:
        """Stop the threads that read the logs."""
        self.looking.session.stop()

    def take(self, snapshot: Snapshot) -> None:
        """Show a new snapshot of the run once the panes exist."""
        if not self._is_composed:
            self._first = snapshot
            return
        before, self.panes.snapshot = self.panes.snapshot, snapshot
        self.looking.update_log(snapshot)
        if before is not None and _stage(before) != _stage(snapshot):
            self.panes.notice.drop_older()
        self.requests.renew()
        self.panes.arrange()
        self._offer()
        self._announce_countdown(before, snapshot)
        self.panes.show()

    def _tick(self) -> None:
        """Once a second, update times and ages while the run is alive."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.state.is_over:
            return
        self.requests.report_answers()
        if isinstance(snapshot.state.condition, HeldOpen):
            self._offer()  # the end of the wait depends on time alone
        self.panes.tick()

    def _announce_countdown(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        """If another screen covers the header, announce the start of a countdown in a notification."""
        if self.app.screen is self or self._access.read_only:
            return
        now = snapshot.state.now(self.panes.clock())
        due, left_s = countdown(snapshot, now)
        if left_s and (before is None or countdown(before, now)[0] != due):
            self.app.notify(tr_of(self)(COUNTDOWNS[due]), severity="warning", timeout=left_s, markup=False)

    def _deliver_log(self, answer: lc.Answer) -> None:
        """Handle a delivery from the reader thread. Drop it if this screen is not running yet; it will be requested again."""
        if self.is_running:
            self.call_later(self.looking.take, answer)

    # -- messages ------------------------------------------------------------------------------------------

    def on_screen_suspend(self) -> None:
        """Hand the keys, including Esc, to the screen that opened on top of this one."""
        self.panes.notice.drop_older()
        self.call_later(self._offer)

    def on_screen_resume(self) -> None:
        """Take the keys back when this screen is on top again."""
        self._offer()

    def on_resize(self, _event: events.Resize) -> None:
        """Lay out the panes and the footer for the new size."""
        self.panes.arrange()
        if self.is_mounted:
            self._offer()

    def on_descendant_focus(self, _event: events.DescendantFocus) -> None:
        """Update the available keys for the newly focused pane."""
        self._offer()

    def on_panel_keys_changed(self) -> None:
        """Update the footer when the available keys change or Esc gets a new target."""
        self._offer()

    def on_ranks_panel_folded(self, _message: RanksPanel.Folded) -> None:
        """Lay out the panes again after the table's row count changes."""
        self.panes.arrange()

    def on_ranks_panel_chosen(self, message: RanksPanel.Chosen) -> None:
        """Show the log for the chosen rank, or for all ranks on the chosen node."""
        self.looking.show_rank(message.who, message.node)

    def on_chart_panel_chosen(self, message: ChartPanel.Chosen) -> None:
        """Show the log line behind the chosen chart point."""
        point = message.point
        if point.step is None and point.time is None:
            self.tell(Answer("its line names no step and no time to find it by", False))
        else:
            self.looking.open_log(lc.LogAt(attempt=point.attempt, step=point.step, t=point.time))

    def tell(self, answer: Answer) -> None:
        """Show a one-line answer."""
        self.panes.tell(answer)

    # -- keys ----------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Check whether an action is available: either the keeper would accept it now, or it only changes this screen."""
        name = str(parameters[0]) if action == "ask" else action
        if name in PLAYBACK:
            searched = name == "fact" and parameters == (1,) and self.check_action("match", (1,))
            return self.playback is not None and self.app.screen is self and not searched
        if "failure" in {name, *parameters}:
            state = self.snapshot.state if self.snapshot is not None else None
            return state is not None and any(a.failure or a.compared for a in state.attempts)
        if name in VETOES and self.is_mounted and self.looking.closes():
            return False  # Esc closes this first, because leaving a page must never stop a restart
        if name in ACTING or name == "continue_run":
            return self.requests.can(name, parameters)
        return self.is_mounted and self.looking.can(name) if name in LOOKS else True

    def on_key(self, event: events.Key) -> None:
        """Explain why a key is unavailable now, because silence would look like a hang."""
        if not self.requests.explain(event):
            text = silence_of(self, event)
            if text is not None and text != self.panes.notice.says:  # not again for each key repeat
                self.tell(Answer(text, None))

    def action_leave(self) -> None:
        """Quit without stopping training."""
        self.app.exit()

    def action_help(self) -> None:
        """Show the keys that work now, with the focused pane's keys first."""
        inside = self.panes.focused
        lines: list[HelpLine] = []
        for group, title in GROUPS.items():
            if group == "move":
                lines += lines_of(inside, title, bindings_of(inside)) if inside is not None else []
                continue
            bindings = [
                binding
                for binding in KEYS
                if isinstance(binding, Binding)
                and (binding.id or "").startswith(f"{group}.")
                and self.offers(binding)
            ]
            lines += lines_of(self, title, bindings)
        self.app.push_screen(HelpScreen(lines))

    def offers(self, binding: Binding) -> bool:
        """Check whether an available key should be shown. Hide redundant keys and those that only explain why they do nothing."""
        match binding.action:
            case "smaller_batch":
                return "smaller_batch" in self.requests.possible
            case "freeze":
                return bool(self.logs.freeze_word())
            case "zoom":
                return self.panes.zoomed not in PAGES and self.looking.closes() != "end zoom"
            case _:
                return True

    def word_of(self, binding: Binding) -> str:
        """Return the footer label for what a key would do now."""
        match binding.action:
            case "back":
                return self.looking.closes() or "to the list"
            case "freeze":
                return self.logs.freeze_word()
            case "zoom" if self.panes.zoomed is not None:
                return "end zoom"
            case "play" if self.playback is not None and self.playback.clock.paused:
                return "play"
            case action if action.startswith("answer(") and self.snapshot is not None:
                return _answer_word(self.snapshot, ANSWER_KEYS.index(binding.key)) or binding.description
            case _:
                return binding.description

    def _offer(self) -> None:
        """Update the footer's keys from the active bindings, putting the recommended key first."""
        snapshot, zoomed = self.snapshot, self.panes.zoomed
        wanted = recommended(snapshot, zoomed) if snapshot is not None else ""
        hints = [
            Hint(
                active.binding.key_display or active.binding.key,
                self.word_of(active.binding),
                active.binding.action,
                active.binding.action == wanted,
            )
            for active in self.active_bindings.values()
            if active.binding.show and active.enabled and active.node is self and self.offers(active.binding)
        ]
        hints = [hint for hint in hints if hint.action not in {"leave", f"page('{zoomed}')"}]
        inner = self._inner_hints()
        unique = list({hint.key: hint for hint in [*hints, *inner]}.values())
        unique.sort(key=self._footer_place(wanted, inner))
        word = leave_word(snapshot) if snapshot is not None and self.playback is None else "leave"
        self.query_one(FooterBar).offer(tuple(unique), Hint("q", word, "leave"))

    def _inner_hints(self) -> list[Hint]:
        """Return the key hints for an open search and for a full-page pane."""
        own: list[Hint] = []
        if self.panes.focused is not None and (word := self.panes.focused.closes()):
            own.append(Hint("Esc", word, "focused.plain"))
        if self.looking.can("match"):
            own += [Hint("n", "↑ older", "match(1)"), Hint("N", "↓ newer", "match(-1)")]
        if self.panes.zoomed is not None:
            own += [Hint(*key) for key in self.panes.find(self.panes.zoomed).inner_keys()]
        return own

    def _footer_place(self, wanted: str, inner: list[Hint]) -> Callable[[Hint], int]:
        """Return the sort key for hints: the recommended key first, then help, Esc and Enter, a page's own keys, and the rest."""
        has_card = self.snapshot is not None and shows_failure(self.snapshot)

        def place(hint: Hint) -> int:
            if hint.action == wanted:
                return 0
            if hint.key in {"?", "Esc", "Enter"}:
                return 1
            is_way_back = hint.action == "freeze" and not self.logs.following
            if hint in inner or hint.action in PLAYBACK_FIRST or is_way_back:
                return 2
            return 3 if has_card and hint.action in RESTARTS else 4

        return place


def _answer_word(snapshot: Snapshot, at: int) -> str:
    """Return an answer to the card's question in as few words as possible."""
    question = snapshot.state.open_question
    if question is None or at >= len(question.answers):
        return ""
    value = question.answers[at].value
    return value.replace("_", " ") if question.what is Unread.SCOPE else value


def _stage(snapshot: Snapshot) -> tuple[object, ...]:
    """Return the state, attempt and visible failure. A change in any of these makes earlier messages stale."""
    return type(snapshot.state.condition), len(snapshot.state.attempts), shows_failure(snapshot)
