"""The dashboard's keys, including those that send requests, and explanations for unavailable keys."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from textual import events
from textual.actions import parse
from textual.binding import Binding, BindingType
from textual.screen import ScreenResultType

from supervisor.run.control import RequestArgs
from supervisor.run.events import RequestKind
from supervisor.run.index import give_name, give_note
from supervisor.run.state import Backoff, HeldOpen
from supervisor.views.tui.dashboard.panes import Panes
from supervisor.views.tui.panels.possible_actions import (
    ACTING,
    ANSWER_KEYS,
    batch_copy,
    batch_flag,
    checkpoint_words,
    continue_text,
    current_batch,
    next_start,
    offer,
    offer_warning,
    overwrite_warning,
    possible,
    question,
    restart_effect,
    set_to_resume,
    suggested_batch,
    why_no_batch,
    why_not,
)
from supervisor.views.tui.panels.state_words import WAIT, countdown
from supervisor.views.tui.shell.feeder import Adopter, Answer, RunAccess
from supervisor.views.tui.shell.prompts import (
    ADOPT,
    CONTINUE,
    AskLine,
    Confirm,
    OfferWords,
    ask_over,
    offer_first,
)
from supervisor.views.tui.shell.screen_base import OverScreen, waits_for_data
from supervisor.views.wording.kinds import changed_text

GROUPS = {
    "recorded": "recorded time",
    "move": "within this pane",
    "act": "act on the run",
    "look": "look",
    "leave": "leave",
}
# Actions that move recorded time, available only in a replay.
PLAYBACK = frozenset({"play", "scrub", "fact", "speed"})


def action_name(binding: Binding) -> str:
    """Return a binding's action name as used in `actions.possible`: "hold" for ``ask('hold')``."""
    name, _, argument = binding.action.partition("(")
    return argument.strip("')") if name == "ask" else name


def _key(
    key: str, action: str, word: str, shown: str, text: str, *, group: str = "look", show: bool = True
) -> Binding:
    name = f"{group}.{action}.{key}"
    return Binding(key, action, word, key_display=shown, show=show, tooltip=text, id=name)


def _act(key: str, action: str, word: str, shown: str, text: str, *, show: bool = True) -> Binding:
    return _key(key, action, word, shown, text, group="act", show=show)


def _hidden(key: str, action: str, word: str, shown: str, text: str) -> Binding:
    """Bind a key that is shown only in the help."""
    return _key(key, action, word, shown, text, show=False)


def _recorded(key: str, action: str, word: str, shown: str = "") -> Binding:
    """Bind a key that controls playback. This binding is checked before the key's usual action."""
    name = f"recorded.{action}"
    return Binding(key, action, word, key_display=shown or None, show=bool(shown), priority=True, id=name)


WAITS = "while a hang, or a run that waits for you, is about to be ended: keep waiting"
ACCEPTS = "while the run waits for you: restart with what is on offer, such as a smaller batch"
ANSWERS = "while something is asked on the card: that answer"
CLOSES = "close page, search, filter, zoom; then back to the list"
MATCHES = "next match: up in the log, from its newest line"

# In the footer's order. Keys that do not fit are dropped from the end.
KEYS: list[BindingType] = [
    _key("question_mark,f1", "help", "help", "?", "this help"),
    _act("A", "adopt", "adopt", "A", "adopt a run whose supervisor process is gone"),
    _act("enter", "accept", "accept", "Enter", ACCEPTS),
    _act("enter", "ask('start_now')", "now", "Enter", "during a back-off: start the next attempt now"),
    _act("escape", "ask('keep_waiting')", "keep waiting", "Esc", WAITS),
    _act(
        "escape", "ask('hold')", "stop the restart", "Esc", "during a back-off: no restart, a person decides"
    ),
    _key("escape", "back", "back", "Esc", CLOSES),
    *(_act(key, f"answer({at})", f"answer {key}", key, ANSWERS) for at, key in enumerate(ANSWER_KEYS)),
    _act("s", "ask('stop')", "stop", "s", "stop gracefully: ask, then SIGTERM, then SIGKILL"),
    _key("o", "open_code", "code", "o", "your own line of the failure, in $EDITOR"),
    _act("S", "ask('stop_now')", "stop now", "S", "stop at once", show=False),
    _key("v", "page('failure')", "why", "v", "the failure: evidence, what followed, what to do"),
    _hidden("y,Y", "copy", "copy", "y", "copy the page, card or pane"),
    _key("slash", "search", "search", "/", "search the log"),
    _key("f,backslash", "filter", "filter", "f", "filter the log by words and ranks"),
    _key("L", "open_log", "logs", "L", "the whole log: any size, any rank, search with a count"),
    _key("space", "freeze", "freeze", "Space", "freeze the log, or follow it again"),
    _key("z", "zoom", "zoom", "z", "the focused pane alone, or all panes"),
    _key("M", "page('metrics')", "metrics", "M", "metrics: all charts, any number of runs in each"),
    _act("r", "continue_run", "continue", "r", "after its end: start the next attempt"),
    _act("r", "ask('restart')", "restart", "r", "restart as it was"),
    _act("b", "smaller_batch", "batch", "b", "restart with another micro-batch, same global batch"),
    _act("e", "edit", "edit", "e", "restart with other arguments or environment"),
    _act("K", "ask('stacks')", "stacks", "K", "dump the Python stacks of all ranks"),
    _act("m", "note", "note", "m", "put a note on the run"),
    _hidden("n", "match(1)", "next match", "n", MATCHES),
    _hidden("N", "match(-1)", "match before", "N", "match before: the other way"),
    # While a search is open, N goes to the search.
    _act("N", "name", "name", "N", "name the run; every command finds it by that name", show=False),
    _hidden("right_square_bracket", "rank(1)", "next rank", "]", "log of the next rank alone"),
    _hidden("left_square_bracket", "rank(-1)", "previous rank", "[", "log of the previous rank"),
    _hidden("right_curly_bracket", "node(1)", "next node", "}", "log of the next node alone"),
    _hidden("left_curly_bracket", "node(-1)", "previous node", "{", "log of the previous node"),
    _hidden("1", "pane('loss')", "loss", "1", "go to the loss, or the failure"),
    _hidden("2", "pane('devices')", "devices", "2", "go to the devices"),
    _hidden("3", "pane('ranks')", "ranks", "3", "go to the ranks; Enter shows a rank's log"),
    _hidden("4,l", "pane('log')", "log", "4 l", "go to the log"),
    _hidden("5,t", "pane('timeline')", "timeline", "5 t", "go to the timeline"),
    _hidden("a", "page('advisories')", "advisories", "a", "stalls and other findings"),
    _hidden("p", "page('processes')", "processes", "p", "processes: pids, the newest stacks"),
    _hidden("P", "page('preflight')", "pre-flight", "P", "what was found before the launch"),
    _hidden("W", "page('times')", "step times", "W", "why a step is slow: where its time goes"),
    _hidden("i", "page('settings')", "settings", "i", "what runs: each setting and its origin"),
    _hidden("T", "app.next_theme", "theme", "T", "dark, light, or safe for colour-blind eyes"),
    _hidden("colon,ctrl+p", "commands", "commands", ":", "all commands, by name"),
    _key("q,d,ctrl+c,ctrl+q", "leave", "leave", "q d", "leave; no training is ended by it", group="leave"),
    _recorded("space", "play", "pause", "Space"),
    _recorded("left", "scrub(-1)", "back"),
    _recorded("right", "scrub(1)", "onward"),
    _recorded("n", "fact(1)", "next fact", "n"),
    _recorded("p", "fact(-1)", "fact before", "p"),
    _recorded("greater_than_sign", "speed(1)", "faster", ">"),
    _recorded("less_than_sign", "speed(-1)", "slower", "<"),
]

VETOES = ("keep_waiting", "hold")
# Keys that always respond, and their requests.
EXPLAINED = {
    binding.key: binding
    for binding in KEYS
    if isinstance(binding, Binding) and action_name(binding) in ACTING and len(binding.key) == 1
}


class Requests:
    """Actions that send a request to the keeper or start a keeper.

    Args:
        panes: the visible panes.
        access: how to reach the run.
    """

    def __init__(self, panes: Panes, access: RunAccess) -> None:
        self.panes, self._access = panes, access
        self.possible: frozenset[str] = frozenset()
        self._dialog: OverScreen[Any] | None = None  # a dialog about the next attempt, while open
        self._made_t = time.monotonic()

    # -- what is possible now ------------------------------------------------------------------------------

    def renew(self) -> None:
        """Update the available actions and any open dialog after the run's state changes."""
        self.report_answers()
        snapshot = self.panes.snapshot
        if snapshot is None:
            return
        can_adopt = self._access.adopter is not None
        self.possible = possible(snapshot, read_only=self._access.read_only, can_adopt=can_adopt)
        self._stop_restart_for_dialog()
        asking = self.panes.screen.app.screen
        if isinstance(asking, OverScreen) and asking.is_mounted:
            asking.renew()

    def report_answers(self) -> None:
        """Show the answers to requests."""
        if (snapshot := self.panes.snapshot) is not None:
            for answer in self._access.client.answers(snapshot.state, self.panes.clock()):
                self.panes.tell(answer)

    def can_continue(self) -> bool:
        """Check whether the next attempt of a finished run can be started."""
        snapshot = self.panes.snapshot
        if snapshot is None or snapshot.gone or snapshot.misplaced or snapshot.keeper_alive:
            return False
        return self._access.continuer is not None and bool(continue_text(snapshot))

    def can(self, name: str, parameters: tuple[object, ...]) -> bool:
        """Check whether an action is possible now. The parameter of an answer is its index."""
        snapshot = self.panes.snapshot
        match name:
            case "continue_run":
                return self.can_continue()
            case "keep_waiting" if snapshot is not None:
                is_held = isinstance(snapshot.state.condition, HeldOpen)
                due, _ = countdown(snapshot, snapshot.state.now(self.panes.clock()))
                return name in self.possible and (due == WAIT or not is_held)
            case "answer":
                asked = snapshot.state.open_question if snapshot is not None else None
                at = int(str(parameters[0]))
                return name in self.possible and asked is not None and at < len(asked.answers)
            case "smaller_batch":
                return "restart" in self.possible  # if the batch is unknown, the key reports why
            case _:
                return name in self.possible

    def is_early(self, event: events.Event) -> bool:
        """Check whether a key was pressed before the run's first data arrived. Such keys have to wait."""
        is_unread = self.panes.snapshot is None or not self.panes.screen.is_mounted
        return is_unread and waits_for_data(event, self._made_t)

    def explain(self, event: events.Key) -> bool:
        """Explain why a request key is not available now. Return True if the key is a request key."""
        binding, snapshot = EXPLAINED.get(event.character or ""), self.panes.snapshot
        if binding is None:
            return False
        if snapshot is None:
            self.panes.tell(Answer("nothing of the run is read yet: ask again", False))
            return True
        name = action_name(binding)
        # If the run has finished, the restart key continues the run.
        can = self.can(name, parse(binding.action)[2]) or (name == "restart" and self.can_continue())
        if can or self.panes.screen.app.screen is not self.panes.screen:
            return True
        event.stop()
        can_adopt = "adopt" in self.possible
        if can_adopt:
            self.action_adopt(f"{name.replace('_', ' ')}: the supervisor process is gone, nobody would do it")
        elif self._access.is_recorded:
            self.panes.tell(Answer("this is a replay: the run cannot be acted on", False))
        else:
            text = why_not(name, snapshot, read_only=self._access.read_only, can_adopt=can_adopt)
            self.panes.tell(Answer(text, False))
        return True

    # -- actions without a dialog ----------------------------------------------------------------------------

    def action_adopt(self, why: str = "") -> None:
        """Show what a new keeper would do, then ask. `why` is the action that needs a keeper."""
        self._offer_first(self._access.adopter, ADOPT, why)

    def action_continue_run(self) -> None:
        """Show a finished run's next attempt and ask whether to start it."""
        self._offer_first(self._access.continuer, CONTINUE)

    def _offer_first(self, adopter: Adopter | None, words: OfferWords, why: str = "") -> None:
        assert adopter is not None, "the key is available"
        screen, feeder, run = self.panes.screen, self._access.feeder, self._access.client.run
        offer_first(screen, feeder.submit, adopter, run, words, self.panes.tell, why=why)

    def action_accept(self) -> None:
        """Restart a held run with the suggested change, asking first if something would be lost."""
        assert self.panes.snapshot is not None, "the key is available"
        self._restart(offer_warning(self.panes.snapshot), RequestArgs(offered=True))

    def _restart(self, risk: str, args: RequestArgs) -> None:
        """Restart with a change, asking first if it is risky."""

        def closed(yes: bool | None) -> None:
            if yes:
                self._send(RequestKind.RESTART_WITH, args)
            else:
                self.panes.tell(Answer("not restarted", None))

        if risk:
            self.panes.screen.app.push_screen(Confirm(f"restart? {risk}"), closed)
        else:
            self._send(RequestKind.RESTART_WITH, args)

    def action_answer(self, at: int) -> None:
        """Answer the question on the card, so the keeper can plan with the answer."""
        asked = self.panes.snapshot.state.open_question if self.panes.snapshot is not None else None
        assert asked is not None, "the key is available"
        self._send(RequestKind.ANSWER, RequestArgs(answer=asked.answers[at].value))

    def action_note(self) -> None:
        """Prompt for a note."""
        ask_over(self.panes.screen, AskLine("note"), self.note_for)

    def note_for(self, words: str) -> None:
        """Add a note to the timeline. A finished run's folder is no longer written to, so its notes go into this user's index."""
        run, text, snapshot = self._access.client.run, words.strip(), self.panes.snapshot
        if text and snapshot is not None and snapshot.state.is_over:
            self._change_index(lambda: f"noted: {give_note(run, text, os.environ)}")
        elif text:
            self._send(RequestKind.NOTE, RequestArgs(text=text))

    def action_name(self) -> None:
        """Prompt for a name for the run."""
        ask_over(self.panes.screen, AskLine("name", self.panes.header.name_given), self.name_for)

    def name_for(self, words: str) -> None:
        """Name the run in this user's index only, because the run's folder may belong to someone else."""
        header = self.panes.header

        def named() -> str:
            header.name_given = give_name(self._access.client.run, words, os.environ)
            self.panes.screen.app.call_later(header.repaint)
            return f"named {header.name_given}"

        self._change_index(named)

    def _change_index(self, change: Callable[[], str]) -> None:
        """Change this user's index in the reader thread, then report what `change` returns or why it failed."""

        def act() -> None:
            try:
                self.panes.report(Answer(change(), True))
            except (ValueError, OSError) as error:
                self.panes.report(Answer(str(error), False))

        self._access.feeder.submit(act)

    # -- restarts and stops, with a dialog -----------------------------------------------------------------

    def action_smaller_batch(self) -> None:
        """Restart with a different batch."""
        from supervisor.views.tui.shell.restart_dialogs import ask_batch

        snapshot = self.panes.snapshot
        assert snapshot is not None, "the key is available"
        if "smaller_batch" not in self.possible:
            offered = offer(snapshot)
            batch = offered.batch if offered is not None else None
            if batch is not None and batch.changes_global and "accept" in self.possible:
                self.action_accept()  # a smaller global batch cannot be typed, only accepted
            else:
                self.panes.tell(Answer(why_no_batch(snapshot), False))
            return
        now, wanted = current_batch(snapshot), suggested_batch(snapshot)
        assert now is not None, "else no smaller one is possible"
        assert wanted is not None, "else none is possible"

        def closed(number: str | None) -> None:
            if number is not None:
                risk = overwrite_warning(self.panes.snapshot or snapshot)
                self._restart(risk, RequestArgs(micro_batch=int(number)))
            else:
                self._tell_not_restarted(asks)

        asks = ask_batch(
            now,
            wanted.micro_batch_per_rank,
            lambda: restart_effect(self.panes.snapshot or snapshot),
            batch_flag(snapshot) or batch_copy(snapshot),
        )
        self._open_restart_dialog(asks, closed)

    def action_edit(self) -> None:
        """Edit the arguments or environment, starting from the suggested change, and restart with them."""
        from supervisor.run.next_job import next_job, undecided
        from supervisor.views.tui.shell.restart_dialogs import Edited, EditScreen

        snapshot = self.panes.snapshot
        assert snapshot is not None, "the key is available"
        assert snapshot.run_file is not None, "the key is available"
        job, offered, attempt = snapshot.run_file.job, offer(snapshot), snapshot.state.attempt
        now, ran = next_job(job, snapshot.state), next_job(job, undecided(snapshot.state))
        proposed = now.after(offered, attempt.number).words if offered and attempt else now.words
        # A change that is no argument, such as one in a copy of a config, is made by Enter on the card alone.
        left_out = changed_text(offered) if offered and proposed == now.words else ""

        def closed(edited: Edited | None) -> None:
            if edited is None:
                self._tell_not_restarted(asks)
            elif edited == Edited(proposed, {}) and proposed != ran.words:
                self._send(RequestKind.RESTART_WITH, RequestArgs(offered=True))
            elif edited == Edited(ran.words, {}):
                text = "nothing changed; not restarted"
                if asks.is_restart_stopped:
                    text = "nothing changed; not restarted; the run waits for you"
                self.panes.tell(Answer(text, None))
            else:
                argv = edited.argv if edited.argv != now.words else None
                self._send(RequestKind.RESTART_WITH, RequestArgs(argv=argv, env=edited.env))

        def effect(typed: tuple[str, ...]) -> list[str]:
            newest = self.panes.snapshot or snapshot
            typed_now = typed if typed != now.words else None
            added = set_to_resume(next_start(newest, typed_now))
            lines = [f"added at the launch: {added}"] if added else []
            return [*lines, restart_effect(newest, typed_now)]

        found = checkpoint_words(next_start(snapshot))
        asks = EditScreen(job.entry, ran.words, proposed, effect, found, left_out)
        self._open_restart_dialog(asks, closed)

    def action_ask(self, name: str) -> None:
        """Send a request to the keeper, asking first if something would be lost."""
        kind = RequestKind(name)
        asked = question(kind, self.panes.snapshot) if self.panes.snapshot else None
        if asked is None:
            self._send(kind)
            return

        def words() -> str:
            return (question(kind, self.panes.snapshot) if self.panes.snapshot else None) or asked

        def closed(yes: bool | None) -> None:
            if yes:
                self._send(kind)
            elif asks.is_restart_stopped:
                self._tell_not_restarted(asks)
            else:
                self.panes.tell(Answer("not stopped" if stops else "not restarted", None))

        asks, stops = Confirm(words), kind in {RequestKind.STOP, RequestKind.STOP_NOW}
        if stops:
            self.panes.screen.app.push_screen(asks, closed)
        else:
            self._open_restart_dialog(asks, closed)

    def _open_restart_dialog(
        self, dialog: OverScreen[ScreenResultType], closed: Callable[[ScreenResultType | None], None]
    ) -> None:
        """Open a dialog about the next attempt. While it is open, no attempt starts with the old arguments."""

        def close(result: ScreenResultType | None) -> None:
            self._dialog = None
            closed(result)

        self._dialog = dialog
        self._stop_restart_for_dialog()
        self.panes.screen.app.push_screen(dialog, close)

    def _stop_restart_for_dialog(self) -> None:
        dialog, snapshot = self._dialog, self.panes.snapshot
        if dialog is None or snapshot is None:
            return
        state = snapshot.state
        waits = isinstance(state.condition, Backoff) and "hold" in self.possible
        by_itself = state.attempt is not None and state.attempt.decided_by == "policy"
        if waits and by_itself and not dialog.is_restart_stopped:
            self._send(RequestKind.HOLD)
            dialog.show_stopped(True)
        elif dialog.is_restart_stopped and not isinstance(state.condition, (Backoff, HeldOpen)):
            dialog.show_stopped(False)  # the restart had already begun, or someone else started or ended it

    def _tell_not_restarted(self, dialog: OverScreen[Any]) -> None:
        """If a dialog paused a restart and was closed without an answer, say that the run was not restarted."""
        if dialog.is_restart_stopped:
            self.panes.tell(Answer("not restarted; the run waits for you", None))

    def _send(self, kind: RequestKind, args: RequestArgs | None = None) -> None:
        snapshot = self.panes.snapshot
        attempt = snapshot.state.attempt if snapshot is not None else None
        number = attempt.number if attempt and kind is not RequestKind.NOTE else None
        now, report = self.panes.clock(), self.panes.report
        self._access.feeder.submit(self._access.client.sender(kind, number, args, now, report))
