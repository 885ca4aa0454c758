"""The list of live and past runs, one per line. Enter opens a run, Space marks runs to compare."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from supervisor.run.control import RequestArgs
from supervisor.run.events import RequestKind
from supervisor.run.index import give_name, give_note
from supervisor.run.paths import RunPaths
from supervisor.run.state import Backoff, HeldOpen
from supervisor.views.model.run_list import RunList, RunRow, Scope, SortKey
from supervisor.views.tui.pages.runs_table import RunsPanel
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.shell.feeder import Adopter, Answer, RequestClient
from supervisor.views.tui.shell.help import HelpScreen, lines_of
from supervisor.views.tui.shell.prompts import CONTINUE, AskLine, Confirm, ask_over, offer_first
from supervisor.views.tui.shell.screen_base import (
    TICK_S,
    FooterBar,
    Hint,
    KeyScreen,
    key_commands,
    silence_of,
    waits_for_data,
)
from supervisor.views.tui.widgets.paint import TextStyle

if TYPE_CHECKING:
    from textual.command import Provider


def _key(key: str, action: str, word: str, shown: str, text: str, *, show: bool = True) -> Binding:
    return Binding(key, action, word, key_display=shown, show=show, tooltip=text)


class BrowserScreen(KeyScreen, Screen[None]):
    """The screen that lists all runs.

    Args:
        clock: returns the wall time.
        scope: which runs to list.
        submit: runs a job in the reader thread.
        look_again: makes the next read list the folder again.
        continuer: starts the next attempt of a finished run, or None if that is unavailable.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("question_mark,f1", "help", "help", "?", "this help"),
        _key("enter", "open", "open", "Enter", "open the run: its dashboard; Esc comes back here"),
        _key("escape", "clear", "clear filter", "Esc", "show all runs again"),
        _key("slash", "filter", "filter", "/", "filter: words, state:failed, failure:cuda_oom, loss<2.5"),
        _key("space", "mark", "mark", "Space", "mark runs to compare, as many as you like; c compares them"),
        _key("c", "compare", "compare", "c", "compare: draw the marked runs' series beside this one's"),
        _key("p", "replay", "replay", "p", "play the run's recording: pause, scrub, jump between events"),
        _key("s", "stop", "stop", "s", "stop the run gracefully: ask, then SIGTERM, then SIGKILL"),
        _key("r", "continue_run", "continue", "r", "start the next attempt of a run that is over"),
        _key("x,delete", "delete", "delete", "x", "delete the run; u brings it back, for a week"),
        _key("N", "name", "name", "N", "name the run; every command finds it by that name"),
        _key("m", "note", "note", "m", "put a note on the run; / finds it"),
        _key("u", "undo", "undo", "u", "bring back what was deleted last"),
        _key("o", "sort", "sort", "o", "sort by the next column"),
        _key("O", "reverse", "reverse", "O", "reverse the order"),
        _key("a", "widen", "all folders", "a", "show or hide your runs in other folders"),
        _key("T", "app.next_theme", "theme", "T", "dark, light, or safe for colour-blind eyes", show=False),
        _key("colon,ctrl+p", "commands", "commands", ":", "all commands, by name", show=False),
        _key("q,d,ctrl+c,ctrl+q", "leave", "leave", "q d", "leave; no training is ended by it", show=False),
    ]

    # Actions with an argument and without a key.
    MORE_COMMANDS: ClassVar[tuple[Binding, ...]] = tuple(
        _key("o", f"sort('{key.name}')", f"sort {key}", "o", "sort the list by this", show=False)
        for key in SortKey
    )
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {key_commands}

    def __init__(
        self,
        clock: Callable[[], float],
        scope: Scope,
        submit: Callable[[Callable[[], None]], object],
        look_again: Callable[[], None],
        continuer: Adopter | None = None,
    ) -> None:
        super().__init__()
        self._clock, self._submit, self._look_again, self._continuer = clock, submit, look_again, continuer
        self.panel = RunsPanel(clock, scope, id="runs")
        self.thrown: list[RunPaths] = []  # deleted runs, the last one restored first
        self.notice = NoticeBar(id="notice")
        self._read = False
        self._made_t = time.monotonic()

    def compose(self) -> ComposeResult:
        """Yield the table, the notice bar for the results of keys, and the footer."""
        yield self.panel
        yield self.notice
        yield FooterBar(id="footer")

    def on_mount(self) -> None:
        """Focus the table and start updating ages once a second."""
        self.panel.focus()
        self._offer()
        self.set_interval(TICK_S, self._tick)

    def take(self, runs: RunList) -> None:
        """Show new data. Before this screen is mounted, keep the data for the first paint."""
        self._read = True
        self.panel.list = runs
        self.panel.renew()
        if self.is_mounted:
            self._offer()

    def is_early(self, event: events.Event) -> bool:
        """Check whether a key has to wait for the first data."""
        return not self._read and waits_for_data(event, self._made_t)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's own signature
        """Check whether a key is available. Opening requires a run; clearing requires a filter."""
        if action in {"open", "mark", "delete", "replay", "name", "note"}:
            return bool(self.panel.rows)
        if action == "compare":
            return self.panel.can_compare
        if action == "continue_run":
            return self._continuer is not None and self.panel.can_continue
        if action == "stop":
            return self.panel.can_stop
        if action == "undo":
            return bool(self.thrown)
        if action == "widen":
            return self.panel.can_widen
        return bool(self.panel.query_text) if action == "clear" else True

    def action_help(self) -> None:
        """Show the keys that work now."""
        lines = lines_of(self, "the list of runs", self.BINDINGS)
        self.app.push_screen(HelpScreen([*lines, *lines_of(self.panel, "move", RunsPanel.BINDINGS)]))

    def action_open(self) -> None:
        """Open only the run under the cursor, even if other runs are marked."""
        self.post_message(RunsPanel.Opened(self.panel.here.run))

    def action_mark(self) -> None:
        """Mark the run under the cursor for comparison, or unmark it."""
        self.panel.mark(self.panel.here.run)
        self._offer()

    def action_compare(self) -> None:
        """Open the run under the cursor and plot the marked runs' series alongside its own series."""
        chosen = self.panel.here.run
        if self.panel.marked == [chosen]:
            self.tell("one run is marked: move to another one, or mark more, then c compares them")
        else:
            beside = [run for run in self.panel.marked if run != chosen]
            self.post_message(RunsPanel.Opened(chosen, beside))

    def action_replay(self) -> None:
        """Replay the run under the cursor."""
        self.post_message(RunsPanel.Opened(self.panel.here.run, replay=True))

    def action_stop(self) -> None:
        """Stop the run under the cursor, after confirmation."""
        row = self.panel.here
        name = row.run.run_id
        text = f"stop {name}? steps since its last checkpoint may be lost"
        if isinstance(row.state.condition, HeldOpen):
            text = f"stop {name}? it waits for you; nothing is running"
        elif isinstance(row.state.condition, Backoff):
            text = f"stop {name}? it waits for its next attempt; nothing is running"
        self._confirm(text, lambda: self._request(row, RequestKind.STOP, None, self.tell_answer))

    def _confirm(self, question: str, act: Callable[[], object]) -> None:
        def closed(yes: bool | None) -> None:
            if yes:
                act()

        self.app.push_screen(Confirm(question), closed)

    def _request(
        self, row: RunRow, kind: RequestKind, args: RequestArgs | None, report: Callable[[Answer], object]
    ) -> None:
        """Send a request to a run's keeper from the reader thread."""
        attempt = row.state.attempt
        number = attempt.number if attempt is not None and kind is not RequestKind.NOTE else None
        later = partial(self.app.call_later, report)
        self._submit(RequestClient(row.run).sender(kind, number, args, self._clock(), later))

    def _change(self, change: Callable[[], str]) -> None:
        """Change a run in the reader thread, then report what `change` returns or why it failed."""
        app = self.app

        def act() -> None:
            try:
                text = change()
            except (ValueError, OSError) as error:
                text = str(error)
            self._look_again()
            app.call_later(self.tell, text)

        self._submit(act)

    def action_continue_run(self) -> None:
        """Show the next attempt of the run under the cursor, and ask whether to start it."""
        continuer = self._continuer
        assert continuer is not None, "the key is available"

        def start(run: RunPaths) -> None:
            continuer.adopt(run)
            self._look_again()

        next_attempt = Adopter(continuer.examine, start)
        offer_first(self, self._submit, next_attempt, self.panel.here.run, CONTINUE, self.tell_answer)

    def on_panel_keys_changed(self) -> None:
        """Update the footer keys for the run under the cursor."""
        self._offer()

    def action_delete(self) -> None:
        """Delete the run under the cursor, after confirmation. `u` restores it within a week."""
        row = self.panel.here
        if row.live:
            self.tell(f"{row.run.run_id} is live: s stops it first")
            return
        run = row.run

        def delete() -> str:
            from supervisor.run.trash import throw_away

            self.thrown.append(throw_away(run))
            return f"{run.run_id} is deleted; u brings it back"

        self._confirm(f"delete {run.run_id}? u brings it back, for a week", lambda: self._change(delete))

    def action_name(self) -> None:
        """Prompt for a name for the run under the cursor."""
        ask_over(self, AskLine("name", self.panel.here.given), self.name_for)

    def name_for(self, words: str) -> None:
        """Name the run under the cursor."""
        if self.panel.row is not None:
            run = self.panel.row.run
            self._change(lambda: f"{run.run_id}: named {give_name(run, words, os.environ)}")

    def action_note(self) -> None:
        """Prompt for a note on the run under the cursor."""
        ask_over(self, AskLine("note"), self.note_for)

    def note_for(self, words: str) -> None:
        """Add a note to the run under the cursor. The keeper records it; if there is no keeper, it goes into the index."""
        row, text = self.panel.row, words.strip()
        if row is None or not text:
            return
        if not row.live or row.state.is_over:
            self._change(lambda: f"noted: {give_note(row.run, text, os.environ)}")
        else:
            args = RequestArgs(text=text)
            self._request(row, RequestKind.NOTE, args, lambda answer: self.tell(answer.text))

    def action_undo(self) -> None:
        """Restore the most recently deleted run."""
        from supervisor.run.trash import bring_back

        self._change(lambda: f"{bring_back(self.thrown.pop()).run_id} is back")

    def tell(self, text: str, style: TextStyle = TextStyle.WARN) -> None:
        """Show a result briefly, or until the next one arrives."""
        self.notice.say(text, style)
        self._offer()

    def tell_answer(self, answer: Answer) -> None:
        """Show the answer to a request."""
        self.tell(answer.text, TextStyle.PLAIN if answer.good is None else TextStyle.WARN)

    def on_key(self, event: events.Key) -> None:
        """Tell the user that a key does nothing here, unless that message is already visible."""
        text = silence_of(self, event)
        if text is not None and text != self.notice.says:
            self.tell(text, TextStyle.PLAIN)

    def action_sort(self, name: str = "") -> None:
        """Sort by the given key, or by the next one if none is given."""
        keys = list(SortKey)
        following = keys[(keys.index(self.panel.sort) + 1) % len(keys)]
        self.panel.sort_by(SortKey[name] if name else following)

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        self.panel.sort_by(self.panel.sort, reverse=not self.panel.reverse)

    def action_filter(self) -> None:
        """Filter the list as the user types."""
        self.panel.open_filter(self._offer)

    def filter_for(self, words: str) -> None:
        """Show the runs that match a filter."""
        self.panel.filter_by(words)
        self._offer()

    def action_widen(self) -> None:
        """Toggle between all folders and this one."""
        self.panel.scope.everywhere = not self.panel.scope.everywhere
        self.panel.repaint()
        self._submit(self._look_again)
        self._offer()

    def action_clear(self) -> None:
        """Clear the filter."""
        self.filter_for("")

    def action_leave(self) -> None:
        """Quit without stopping any run."""
        self.app.exit()

    def _tick(self) -> None:
        if self.app.screen is self:
            self.panel.repaint()

    def _offer(self) -> None:
        words = {"widen": "this folder"} if self.panel.scope.everywhere else {}
        hints = [
            Hint(each.key_display or each.key, words.get(each.action, each.description), each.action)
            for each in self.BINDINGS
            if isinstance(each, Binding) and each.show and self.check_action(each.action, ())
        ]
        self.query_one("#footer", FooterBar).offer(tuple(hints), Hint("q", "leave", "leave"))
