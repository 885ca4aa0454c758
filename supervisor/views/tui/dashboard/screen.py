"""The dashboard: what its keys do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from operator import is_not
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import ScreenResultType

from supervisor.run.control import Presence, RequestArgs
from supervisor.run.events import RequestKind
from supervisor.run.index import give_name, give_note
from supervisor.run.state import Backoff, HeldOpen
from supervisor.views.logs import commands as lc
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dashboard.actions import (
    ACTING,
    ANSWER_KEYS,
    batch_copy,
    batch_flag,
    checkpoint_words,
    continue_text,
    current_batch,
    is_passing,
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
from supervisor.views.tui.dashboard.failure_card import FailureCard
from supervisor.views.tui.dashboard.header import HeaderPanel
from supervisor.views.tui.dashboard.keys import GROUPS, KEYS, action_name
from supervisor.views.tui.dashboard.navigation import BEHIND_S, LookingScreen
from supervisor.views.tui.dashboard.state_words import (
    hang_ends_in,
    is_live,
    restarts_in,
    shows_failure,
    wait_ends_in,
)
from supervisor.views.tui.dialogs.help import HelpLine, HelpScreen, bindings_of, lines_of
from supervisor.views.tui.dialogs.prompts import ADOPT, CONTINUE, AskLine, Confirm, ask_over, offer_first
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.request_client import Adopter, Answer, RequestClient
from supervisor.views.tui.screen_base import FIRST_READ_S, LEAVING, OverScreen, key_commands, silence_of
from supervisor.views.tui.widgets.panel import Panel, View, tr_of
from supervisor.views.wording.kinds import changed_text

if TYPE_CHECKING:
    from textual.command import Provider

    from supervisor.run.ownership import Offer

TICK_S = 1.0
VETOES = ("keep_waiting", "hold")
# A key that is not possible yet waits for a newer reading, and while the run's state is passing.
NEWER_READ_S = 5.0
PASSING_S = 4.0
SECOND_ENTER_S = 30.0
"""So long a warning holds: a second Enter within it does what was warned of."""
# The first page is read before the pane has a size: more rows than it has on most terminals.
FIRST_ROWS = 50
FIRST_LINES_LATEST_S = 0.1
# Keys that are never silent, and what they ask for.
EXPLAINED = {
    binding.key: action_name(binding)
    for binding in KEYS
    if isinstance(binding, Binding) and action_name(binding) in ACTING and len(binding.key) == 1
}


# A run without a keeper is looked at so often for whether it can be taken over: that reads /proc.
ADOPTION_S = 10.0


class Dashboard(LookingScreen):
    """One run on one screen.

    Args:
        client: where requests are put.
        feeder: the reading thread; requests are put in it too.
        clock: wall time.
        read_only: no requests.
        presence: shows the keeper that somebody is here who can act, and is in a dialog; None: nobody can.
        adopter: takes over a run whose keeper died; None where that is not offered.
        continuer: starts the next attempt of a run that is over; None where that is not offered.
        back: goes back to the list of runs; None where the run was not opened from one.
        name: what the run is called in the index; empty: it is not known there.
    """

    is_recorded: ClassVar[bool] = False  # what happens is no news
    BINDINGS: ClassVar[list[BindingType]] = KEYS
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {key_commands}

    def __init__(
        self,
        client: RequestClient,
        feeder: Feeder[Snapshot],
        clock: Callable[[], float],
        *,
        read_only: bool = False,
        presence: Presence | None = None,
        adopter: Adopter | None = None,
        continuer: Adopter | None = None,
        back: Callable[[], None] | None = None,
        name: str = "",
    ) -> None:
        super().__init__(client, feeder, clock, back)
        self._name_given = name
        self._read_only = read_only
        self._presence = presence
        self._adopter = adopter
        self._continuer = continuer
        self._possible: frozenset[str] = frozenset()
        self._adopting = False
        self._adoption: Offer | None = None  # what taking the run over would do; None: not looked at yet
        self._adoption_due = 0.0
        self._first: Snapshot | None = None
        self._is_composed = self._reads_logs = False
        self._first_page: lc.Page | None = None
        self._stale = False
        self._due = 0.0
        self._warned: tuple[int | None, float] = (None, 0.0)
        self._ends_soon = False
        self._restart_dialog: OverScreen[Any] | None = None
        self._made_t = time.monotonic()
        self._early: events.Event | None = None
        self._early_t = 0.0
        self._newer_revision: int | None = None

    def on_mount(self) -> None:
        """Begin to tick; the log has the keys."""
        self._is_composed = True
        notice = self.notice
        notice.read_only, notice.recorded = self._read_only, self.is_recorded
        self.query_one(HeaderPanel).name_given = self._name_given
        self.log_panel.focus()
        if self._first_page is not None:
            self.logs.take(self._first_page)
        else:
            if not self._reads_logs:
                self.logs.session.start()
            self.logs.ask(lc.Size(FIRST_ROWS))
        if self._first is not None:
            self.take(self._first)
            self._first = None
        else:
            self._arrange()
            self._offer()
        self.set_interval(TICK_S, self._tick)

    def begin_with(self, snapshot: Snapshot) -> None:
        """The moment that is there when this is mounted, with its newest lines where those are read soon enough."""
        self._first = snapshot
        self._update_logs(snapshot)
        self.logs.ask(lc.Size(FIRST_ROWS))
        self._reads_logs = True
        self._first_page = self.logs.session.start_with_first(FIRST_LINES_LATEST_S)

    def take(self, snapshot: Snapshot) -> None:
        """Show a new moment of the run, once there are panes to show it."""
        if not self._is_composed:
            self._first = snapshot
            return
        before, self.snapshot = self.snapshot, snapshot
        self._update_logs(snapshot)
        if self._log_screen is not None and (
            before is None or before.nodes is not snapshot.nodes or before.state is not snapshot.state
        ):
            self._log_screen.take(snapshot.state, snapshot.node_logs)
        if before is None or any(map(is_not, before.facts(), snapshot.facts())):
            if before is not None and _stage(before) != _stage(snapshot):
                self.notice.drop_older()
            self._take_facts(snapshot)
            self._say_countdown(before, snapshot)
        now = time.monotonic()
        self._stale = self._is_covered() or (self.app.screen is not self and now < self._due)
        if not self._stale:
            self._due = now + BEHIND_S
            self._show()

    def _take_facts(self, snapshot: Snapshot) -> None:
        """More than lines is new."""
        for answer in self._client.answers(snapshot.state, self._clock()):
            self.tell(answer)
        if self._adopting and snapshot.keeper_alive:
            self._adopting = False
            self.tell(Answer("adopted: a new supervisor process looks after the run", True))
        self._look_for_adoption()
        self._possible = possible(snapshot, read_only=self._read_only, can_adopt=self._can_adopt)
        self._ends_soon = self._is_wait_ending()
        self._stop_restart_for_dialog()
        self._arrange()
        self._offer()
        asking = self.app.screen
        if isinstance(asking, OverScreen) and asking.is_mounted:
            asking.renew()

    def _can_continue(self) -> bool:
        snapshot = self.snapshot
        here = snapshot is not None and not (snapshot.gone or snapshot.misplaced or snapshot.keeper_alive)
        return here and self._continuer is not None and snapshot is not None and bool(continue_text(snapshot))

    @property
    def _can_adopt(self) -> bool:
        return self._adoption is not None and not self._adoption.refusals

    def _look_for_adoption(self) -> None:
        """Of a run without a keeper look now and then whether it can be taken over: the key is offered only where it can."""
        snapshot, adopter, now = self.snapshot, self._adopter, time.monotonic()
        if snapshot is None or adopter is None or self._read_only:
            return
        if snapshot.keeper_alive or not is_live(snapshot) or snapshot.state.mode == "observed":
            self._adoption, self._adoption_due = None, 0.0
            return
        if now < self._adoption_due:
            return
        self._adoption_due = now + ADOPTION_S

        def examine() -> None:
            self.app.call_later(self._take_adoption, adopter.examine(self._client.run))

        self._feeder.submit(examine)

    def _take_adoption(self, offer: Offer) -> None:
        self._adoption = self.notice.adoption = offer
        if self.snapshot is not None and self.is_mounted:
            self._possible = possible(self.snapshot, read_only=self._read_only, can_adopt=self._can_adopt)
            self._offer()
            self.notice.repaint()

    def on_unmount(self) -> None:
        """End the threads that read the logs."""
        self.logs.session.stop()

    def _say_countdown(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        """A countdown stands in the header: on another screen a message says that it began."""
        if self.app.screen is self or self._read_only:
            return
        now = snapshot.state.now(self._clock())
        for ends_in in (hang_ends_in, restarts_in, wait_ends_in):
            left_s = ends_in(snapshot, now)
            if not left_s or (before is not None and ends_in(before, now) is not None):
                continue
            text = f"hang: ending in {left_s:.0f} s, Esc on the dashboard keeps waiting"
            if ends_in is restarts_in:
                text = f"the run restarts in {left_s:.0f} s, Esc on the dashboard stops that"
            elif ends_in is wait_ends_in:
                text = (
                    f"the run that waits for you ends in {left_s:.0f} s, Esc on the dashboard keeps waiting"
                )
            self.app.notify(tr_of(self)(text), severity="warning", timeout=left_s, markup=False)

    def _is_wait_ending(self) -> bool:
        snapshot = self.snapshot
        return snapshot is not None and wait_ends_in(snapshot, snapshot.state.now(self._clock())) is not None

    def _offer(self) -> None:
        super()._offer()
        vetoes = self.app.screen is self and any(self.check_action("ask", (kind,)) for kind in VETOES)
        header = self.query_one(HeaderPanel)
        if header.esc_vetoes != vetoes:
            header.esc_vetoes = vetoes
            header.repaint()

    def on_screen_resume(self) -> None:
        """In front again, with its keys."""
        self._catch_up()
        self._offer()

    def _catch_up(self) -> None:
        """Paint what was not painted while this was covered."""
        self._pace_logs()
        if self._stale:
            self._stale = False
            self._show()

    def _tick(self) -> None:
        """Times and ages move once a second while something lives."""
        covered = self._is_covered()
        if not covered:
            self._catch_up()
        if self.snapshot is None or self.snapshot.state.is_over:
            return
        for answer in self._client.answers(self.snapshot.state, self._clock()):
            self.tell(answer)
        self._look_for_adoption()
        if covered:
            self._stale = True
            return
        if self._ends_soon != self._is_wait_ending():  # time alone brings that
            self._ends_soon = not self._ends_soon
            self._offer()
        view = View(self.snapshot, self.snapshot.state.now(self._clock()), tr_of(self))
        for panel in self.query(Panel):
            panel.tick(view)

    def offers(self, binding: Binding) -> bool:
        """A key that would only say why it can do nothing is not shown."""
        can = binding.action != "smaller_batch" or "smaller_batch" in self._possible
        return can and super().offers(binding)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what a keeper would do now, or what changes something here, is possible."""
        name = str(parameters[0]) if action == "ask" else action
        if name == "continue_run":
            return self._can_continue()
        if "failure" in {name, *parameters}:
            state = self.snapshot.state if self.snapshot is not None else None
            return state is not None and any(a.failure or a.compared for a in state.attempts)
        if name in VETOES and self.is_mounted and self._closes():
            return False  # Esc closes that first: nobody stops a restart by leaving a page
        if name == "keep_waiting" and self.snapshot is not None:
            held = isinstance(self.snapshot.state.condition, HeldOpen)
            return name in self._possible and (self._is_wait_ending() or not held)
        if name == "answer":
            question = self.snapshot.state.open_question if self.snapshot is not None else None
            at = int(str(parameters[0])) if parameters else 0
            return name in self._possible and question is not None and at < len(question.answers)
        if name == "smaller_batch":
            return "restart" in self._possible  # where no batch is known the key says why
        if name in ACTING:
            return name in self._possible
        if action == "back":
            return self._can_go_back()
        if action == "node":
            return self.snapshot is not None and bool(self.snapshot.nodes)
        if action == "open_reports":
            return self.is_mounted and self.logs.can_fold
        if action == "open_code":
            return self.is_mounted and self._own_code() is not None
        if action == "copy":
            return self.is_mounted and self._to_copy() is not None
        if action == "match":
            page = self._searchable() if self.is_mounted else None
            return bool(page.search if page is not None else self.logs.searched)
        return True

    def is_early(self, event: events.Event) -> bool:
        """Whether a key should be looked at a moment later, because what it asks for may be possible then.

        The screen shows what was read a moment ago: before a key is refused the run is read once more. While the run is only
        starting, or a decision is being made, the key waits a little longer.
        """
        now = time.monotonic()
        key = event.key if isinstance(event, events.Key) else ""
        if key in LEAVING:
            return False
        if self.snapshot is None or not self.is_mounted:
            return now - self._made_t < FIRST_READ_S
        name = EXPLAINED.get(event.character or "") if isinstance(event, events.Key) else None
        # The answers are to what is read on the card: one that comes before the question is no answer to it.
        if name is None or name == "answer" or self._read_only or self.check_action(name, ()):
            return False
        if self._early is not event:
            self._early, self._early_t, self._newer_revision = event, now, None

            def is_read(revision: int) -> None:
                if self._early is event:
                    self._newer_revision = revision

            self._feeder.read_anew(is_read)
        waited_s = now - self._early_t
        if self._newer_revision is None or self.snapshot.revision < self._newer_revision:
            return waited_s < NEWER_READ_S
        if not is_passing(self.snapshot) or waited_s >= PASSING_S:
            return False
        text = f"{name.replace('_', ' ')}: not possible yet, a moment…"
        if self.notice.says != text:
            self.tell(Answer(text, None))
        return True

    def on_key(self, event: events.Key) -> None:
        """A key that would ask something of a keeper, and cannot now, says why: silence would look like a hang."""
        name = EXPLAINED.get(event.character or "")
        snapshot = self.snapshot
        text = silence_of(self, event) if name is None else None
        if text is not None and text != self.notice.says:  # not again for each repeat
            self.tell(Answer(text, None))
        at = (ANSWER_KEYS.index(event.character),) if name == "answer" and event.character else ()
        if name is not None and snapshot is None:
            self.tell(Answer("nothing of the run is read yet: ask again", False))
        if name == "restart" and self._can_continue():
            return  # of a run that is over the same key continues it
        if name is None or snapshot is None or self.check_action(name, at) or self.app.screen is not self:
            return
        event.stop()
        can_adopt = "adopt" in self._possible
        if can_adopt and name != "adopt":
            self.action_adopt(f"{name.replace('_', ' ')}: the supervisor process is gone, nobody would do it")
            return
        if name == "adopt" and self._adoption is not None and self._adoption.refusals:
            self.tell(Answer(f"not adopted: {self._adoption.refusals[0]}", False))
            return
        width = self.size.width
        text = why_not(name, snapshot, read_only=self._read_only, can_adopt=can_adopt, width=width)
        self.tell(Answer("this is a replay: the run cannot be acted on" if self.is_recorded else text, False))

    def action_help(self) -> None:
        """The keys that do something now."""
        self.app.push_screen(HelpScreen(self._help_lines()))

    def _help_lines(self) -> list[HelpLine]:
        """Of what has the keys first."""
        inside = self.focused
        lines = lines_of(inside, GROUPS["move"], bindings_of(inside)) if isinstance(inside, Panel) else []
        for group, title in GROUPS.items():
            bindings = [
                binding
                for binding in KEYS
                if isinstance(binding, Binding)
                and (binding.id or "").startswith(f"{group}.")
                and self.offers(binding)
                # The keys of a question's answers are one line.
                and (action_name(binding) != "answer" or binding.key == ANSWER_KEYS[0])
            ]
            found = lines_of(self, title, bindings)
            lines += [
                line._replace(key=" ".join(ANSWER_KEYS)) if line.key == ANSWER_KEYS[0] else line
                for line in found
            ]
        return lines

    # -- acting -------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Leave; training continues."""
        self.app.exit()

    def action_adopt(self, why: str = "") -> None:
        """Say what it would be to let a new keeper take the run over, and ask. `why`: what a person wanted that needs one."""
        if self._adopter is None:
            return

        def accepted() -> None:
            self._adopting = True

        submit, run = self._feeder.submit, self._client.run
        offer_first(self, submit, self._adopter, run, ADOPT, self.tell, why=why, accepted=accepted)

    def action_continue_run(self) -> None:
        """Say what the next attempt of a run that is over would be, and ask."""
        if self._continuer is not None:
            submit, run = self._feeder.submit, self._client.run
            offer_first(self, submit, self._continuer, run, CONTINUE, self.tell)

    def action_ask(self, kind: str) -> None:
        """Ask the keeper for what the kind of request says."""
        self._ask(RequestKind(kind))

    def action_accept(self) -> None:
        """Restart a held run with what is on offer; where something would be lost, only the second time."""
        snapshot = self.snapshot
        attempt = snapshot.state.attempt if snapshot is not None else None
        if snapshot is None or attempt is None:
            return
        warning, now = offer_warning(snapshot), time.monotonic()
        number, until = self._warned
        if warning and not (number == attempt.number and now < until):
            self._warned = attempt.number, now + SECOND_ENTER_S
            self.query_one("#card", FailureCard).confirm(attempt.number, warning, now + SECOND_ENTER_S)
            self.tell(Answer(f"Enter again: {warning}", False))
            return
        self._warned = None, 0.0
        self.query_one("#card", FailureCard).confirm(None, "", 0.0)
        self._send(RequestKind.RESTART_WITH, RequestArgs(offered=True))

    def action_answer(self, at: int) -> None:
        """Answer what is asked on the card; the keeper then plans with it."""
        question = self.snapshot.state.open_question if self.snapshot is not None else None
        if question is not None and at < len(question.answers):
            self._send(RequestKind.ANSWER, RequestArgs(answer=question.answers[at].value))

    def action_note(self) -> None:
        """Ask what is to be noted."""
        ask_over(self, AskLine("note"), self.note_for)

    def note_for(self, words: str) -> None:
        """Mark the timeline; of a run that is over, whose folder is no longer written to, the note is kept in this user's index."""
        run, text = self._client.run, words.strip()
        if not text:
            return
        if self.snapshot is None or not self.snapshot.state.is_over:
            self._send(RequestKind.NOTE, RequestArgs(text=text))
            return

        def keep() -> None:
            try:
                self._report(Answer(f"noted: {give_note(run, text, os.environ)}", True))
            except (ValueError, OSError) as error:
                self._report(Answer(str(error), False))

        self._feeder.submit(keep)

    def action_name(self) -> None:
        """Ask what the run is to be called."""
        ask_over(self, AskLine("name", self.query_one(HeaderPanel).name_given), self.name_for)

    def name_for(self, words: str) -> None:
        """Call the run so, in this user's index alone: its folder may be anybody's."""
        run = self._client.run

        def name() -> None:
            try:
                self.app.call_later(self._take_name, give_name(run, words, os.environ))
            except (ValueError, OSError) as error:
                self._report(Answer(str(error), False))

        self._feeder.submit(name)

    def _take_name(self, name: str) -> None:
        header = self.query_one(HeaderPanel)
        header.name_given = name
        header.repaint()
        self.tell(Answer(f"named {name}", True))

    def action_smaller_batch(self) -> None:
        """Restart with another batch."""
        from supervisor.views.tui.dialogs.restart import BatchScreen

        snapshot = self.snapshot
        if snapshot is not None and "smaller_batch" not in self._possible:
            offered = offer(snapshot)
            batch = offered.batch if offered is not None else None
            if batch is not None and batch.changes_global and "accept" in self._possible:
                self.action_accept()  # a smaller global batch cannot be typed, but this one is on offer: it is asked about
                return
            self.tell(Answer(why_no_batch(snapshot), False))
            return
        now = current_batch(snapshot) if snapshot else None
        wanted = suggested_batch(snapshot) if snapshot else None
        if snapshot is None or now is None or wanted is None:
            return

        def closed(number: int | None) -> None:
            if number is not None:
                self._send(RequestKind.RESTART_WITH, RequestArgs(micro_batch=number))
            else:
                self._tell_not_restarted(asks)

        flag = batch_flag(snapshot) or batch_copy(snapshot)
        asks = BatchScreen(
            now,
            wanted.micro_batch_per_rank,
            lambda: restart_effect(self.snapshot or snapshot),
            lambda: overwrite_warning(self.snapshot or snapshot),
            flag,
        )
        self._open_restart_dialog(asks, closed)

    def action_edit(self) -> None:
        """Restart with other arguments or environment."""
        from supervisor.run.next_job import next_job, undecided
        from supervisor.views.tui.dialogs.restart import Checkpoint, Edited, EditScreen

        snapshot = self.snapshot
        if snapshot is None or snapshot.run_file is None:
            return

        job, offered, attempt = snapshot.run_file.job, offer(snapshot), snapshot.state.attempt
        now, ran = next_job(job, snapshot.state), next_job(job, undecided(snapshot.state))
        proposed = now.after(offered, attempt.number).words if offered and attempt else now.words
        # Of a change that is partly an argument the whole is made with the words as they are proposed.
        batch = offered.batch.after if offered and offered.batch and proposed == now.words else None
        place = batch_copy(snapshot) if batch is not None else ""
        copied = f"{changed_text(offered)}, {place}" if offered and place else ""

        def closed(edited: Edited | None) -> None:
            if edited is None:
                self._tell_not_restarted(asks)
            elif edited == Edited(None, {}) and asks.is_restart_stopped and now.words != ran.words:
                self._send(RequestKind.RESTART_WITH, RequestArgs(offered=True))  # as it was about to begin
            elif edited == Edited(None, {}):
                text = "nothing changed; not restarted"
                if asks.is_restart_stopped:
                    text = "nothing changed; not restarted; the run waits for you"
                self.tell(Answer(text, None))
            elif edited in (Edited(proposed, {}), Edited(None, {}, with_copy=True)):
                # With what belongs to the plan besides arguments.
                self._send(RequestKind.RESTART_WITH, RequestArgs(offered=True))
            else:
                micro = batch.micro_batch_per_rank if batch is not None and edited.with_copy else None
                args = RequestArgs(micro_batch=micro, argv=edited.argv, env=edited.env)
                self._send(RequestKind.RESTART_WITH, args)

        def effect(typed: tuple[str, ...] | None) -> list[str]:
            newest = self.snapshot or snapshot
            added = set_to_resume(newest, typed)
            lines = [f"added at the launch: {added}"] if added else []
            return [*lines, restart_effect(newest, typed)]

        flag, path = checkpoint_words(snapshot) or (None, "")
        found = Checkpoint(path, flag) if path else None
        asks = EditScreen(job.entry, now.words, effect, found, proposed, copied, ran.words)
        self._open_restart_dialog(asks, closed)

    def _open_restart_dialog(
        self, dialog: OverScreen[ScreenResultType], closed: Callable[[ScreenResultType | None], None]
    ) -> None:
        """Open a dialog about the next attempt; none starts by itself with the old arguments while a person is in it."""

        def close(result: ScreenResultType | None) -> None:
            self._restart_dialog = None
            self._show_deciding(False)
            closed(result)

        self._restart_dialog = dialog
        self._show_deciding(True)
        self._stop_restart_for_dialog()
        self.app.push_screen(dialog, close)

    def _show_deciding(self, deciding: bool) -> None:
        """Let the keeper look for newer checkpoints at once, and every second until the dialog is left."""
        if (presence := self._presence) is not None:
            self._feeder.submit(lambda: presence.decide(deciding, time.monotonic()))

    def _stop_restart_for_dialog(self) -> None:
        dialog, snapshot = self._restart_dialog, self.snapshot
        if dialog is None or snapshot is None:
            return
        state = snapshot.state
        waits = isinstance(state.condition, Backoff) and "hold" in self._possible
        by_itself = state.attempt is not None and state.attempt.decided_by == "policy"
        if waits and by_itself and not dialog.is_restart_stopped:
            self._send(RequestKind.HOLD)
            dialog.show_stopped(True)
        elif dialog.is_restart_stopped and not isinstance(state.condition, (Backoff, HeldOpen)):
            dialog.show_stopped(False)  # it had begun already, or somebody else started or ended it

    def _tell_not_restarted(self, dialog: OverScreen[Any]) -> None:
        """After a dialog that was left without an answer: what became of the restart that it stopped."""
        if dialog.is_restart_stopped:
            self.tell(Answer("not restarted; the run waits for you", None))

    def _ask(self, kind: RequestKind) -> None:
        """Send a request, after a question where something would be lost."""
        asked = question(kind, self.snapshot) if self.snapshot else None
        if asked is None:
            self._send(kind)
            return

        def words() -> str:
            return (question(kind, self.snapshot) if self.snapshot else None) or asked

        def closed(yes: bool | None) -> None:
            if yes:
                self._send(kind)
            elif asks.is_restart_stopped:
                self._tell_not_restarted(asks)
            else:
                self.tell(Answer("not stopped" if stops else "not restarted", None))

        asks, stops = Confirm(words), kind in {RequestKind.STOP, RequestKind.STOP_NOW}
        if stops:
            self.app.push_screen(asks, closed)
        else:
            self._open_restart_dialog(asks, closed)

    def _send(self, kind: RequestKind, args: RequestArgs | None = None) -> None:
        attempt = self.snapshot.state.attempt if self.snapshot else None
        number = attempt.number if attempt and kind is not RequestKind.NOTE else None
        report = self._report
        self._feeder.submit(self._client.sender(kind, number, args, self._clock(), report))


def _stage(snapshot: Snapshot) -> tuple[object, ...]:
    """What makes news of before old: another state, another attempt, a failure on the screen."""
    return type(snapshot.state.condition), len(snapshot.state.attempts), shows_failure(snapshot)
