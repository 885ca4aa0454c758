"""What is looked at on the dashboard: panes, pages, the log, another run. Nothing here asks a keeper for anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from msgspec.structs import replace
from textual import events
from textual.binding import Binding
from textual.message import Message

from supervisor.job.spec import Unread
from supervisor.views.logs import commands as lc
from supervisor.views.logs.commands import LogAt, LogPoint
from supervisor.views.logs.query import Query
from supervisor.views.logs.session import PAGE_S, LogSession
from supervisor.views.logs.sources import Tone
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.live import LossPanel
from supervisor.views.tui.charts.zoomable import STEPS as CHART_STEPS
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.dashboard.actions import ANSWER_KEYS
from supervisor.views.tui.dashboard.bars import recommended
from supervisor.views.tui.dashboard.failure_card import FailureCard, own_line_of
from supervisor.views.tui.dashboard.panes import PaneScreen
from supervisor.views.tui.dashboard.ranks import RanksPanel
from supervisor.views.tui.dashboard.state_words import is_live, leave_word, shows_failure
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.logs.controls import LogControls
from supervisor.views.tui.logs.pane import LogPanel
from supervisor.views.tui.pages.text_page import PAGES
from supervisor.views.tui.request_client import Answer, RequestClient
from supervisor.views.tui.saved_layout import memory_of
from supervisor.views.tui.widgets.footer import FooterBar, Hint
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.phrases import is_stacks

# What may be typed to go to a step.
STEPS = "a step of the chart (1200, 12k), or from one to another (1200-1400)"

if TYPE_CHECKING:
    from supervisor.run.paths import RunPaths
    from supervisor.text.user_line import CodeLine
    from supervisor.views.tui.logs.screen import LogScreen
    from supervisor.views.tui.pages.metrics import OtherRun
    from supervisor.views.tui.pages.text_page import Searchable


# The pane reads the two newest attempts as one log: after a restart the end of the one before stays in sight.
PANE_ATTEMPTS = 2
# What listens to the filesystem is loaded once the first paints are done.
WATCH_AFTER_S = 1.0
# Behind another screen news are painted at most so often: with a see-through one the whole terminal is composed twice.
BEHIND_S = 0.5
# In the footer of a run that trains: looking at it is what a person mostly does, and at 80 columns seven keys fit.
USUAL_FIRST = ("ask('stop')", "search", "filter", "open_log", "zoom", "page('metrics')", "ask('restart')")


# Below this width the footer's words are short, so that the card's keys fit.
ROOMY_FOOTER = 100


class LookingScreen(PaneScreen):
    """Moves between what can be seen.

    Args:
        client: the run, and where requests are put.
        feeder: the reading thread.
        clock: wall time.
        back: goes back to the list of runs; None where the run was not opened from one.
    """

    FIRST_ACTIONS: ClassVar[frozenset[str]] = frozenset()  # in the footer before the usual ones
    # Without a key of their own.
    MORE_COMMANDS: ClassVar[tuple[Binding, ...]] = (
        Binding("x", "go_step", "step", key_display=" ", tooltip=STEPS),
    )

    class LogNews(Message):
        """The thread that reads the logs has something."""

        def __init__(self, answer: lc.Answer) -> None:
            super().__init__()
            self.answer = answer

    def __init__(
        self,
        client: RequestClient,
        feeder: Feeder[Snapshot],
        clock: Callable[[], float],
        back: Callable[[], None] | None,
    ) -> None:
        super().__init__(clock)
        self._client = client
        self._feeder = feeder
        self._back = back
        self._log_screen: LogScreen | None = None
        session = LogSession(
            client.node,
            self._deliver_log,
            newest=PANE_ATTEMPTS,
            watch_after_s=WATCH_AFTER_S,
        )
        self.logs = LogControls(
            session, self._show_log, self._report_log, lambda: self.log_panel.row, self._offer
        )
        self._logs_known: tuple[object, ...] = ()
        self._could_fold = False
        self._progress = ""  # what was reported of a search that is not done

    # -- the log pane --------------------------------------------------------------------------------------

    def _update_logs(self, snapshot: Snapshot) -> None:
        """Say which logs there are, and which line the newest failure began with."""
        attempt = snapshot.state.attempt
        verdict = attempt.verdict if attempt is not None and attempt.ended_t is not None else None
        cause = verdict.cause if verdict is not None and attempt is not None and attempt.failure else None
        line = (
            lc.CauseLine(attempt.number, cause.path, cause.line, cause.text)
            if attempt is not None and cause is not None and cause.line is not None
            else None
        )
        nodes = snapshot.node_logs
        known = (lc.log_facts(snapshot.state, nodes), line, snapshot.recorded_t)
        if known != self._logs_known:
            self._logs_known = known
            self.logs.ask(lc.Update(snapshot.state, snapshot.recorded_t, nodes), lc.KeepCause(line))

    def _deliver_log(self, answer: lc.Answer) -> None:
        """From the reading thread. What comes before this screen runs is asked for again once it does."""
        if self.is_running:
            self.post_message(self.LogNews(answer))

    def on_looking_screen_log_news(self, message: LogNews) -> None:
        """Show it."""
        match message.answer:
            case lc.Page() as page:
                self.logs.take(page)
            case lc.Remark() as remark:
                self.logs.progress(remark)
                self._report_log(remark)

    def _show_log(self, page: lc.Page) -> None:
        shown = self.log_panel.page
        before = self._could_fold, shown.key_facts if shown is not None else ()
        self._could_fold = self.logs.can_fold
        self.log_panel.take(page)
        if self._progress:
            self.notice.withdraw(self._progress)
            self._progress = ""
        self.ranks_panel.take_lines(page.last_lines)
        if before != (self._could_fold, page.key_facts):
            self._offer()

    def _report_log(self, remark: lc.Remark) -> None:
        self.tell(Answer(remark.text, remark.good))
        self._progress = remark.text if remark.good is None else ""

    def _pace_logs(self) -> None:
        """Read only as often as somebody can see it: not at all under a screen that covers this one."""
        is_front = self.app.screen is self
        self.logs.session.pace(PAGE_S if is_front else None if self._is_covered() else BEHIND_S)

    def _is_covered(self) -> bool:
        """Whether nothing of this is seen, as under the log: what is painted here has Textual compose all of that again."""
        stack = self.app.screen_stack
        above = stack[stack.index(self) + 1 :] if self in stack else []
        return any(screen.styles.background.a == 1 for screen in above)

    def on_screen_suspend(self) -> None:
        """Something is opened over this: it has the keys, Esc too."""
        self.notice.drop_older()
        self.call_later(self._pace_logs)
        self.call_later(self._offer)

    def on_log_panel_moved(self, message: LogPanel.Moved) -> None:
        """Other lines."""
        self.logs.ask(message.move)

    def on_log_panel_sized(self, message: LogPanel.Sized) -> None:
        """Another number of lines."""
        self.logs.ask(lc.Size(message.rows))

    # -- what is looked at -----------------------------------------------------------------------------------

    def tell(self, answer: Answer) -> None:
        """Say what became of a request."""
        style = TextStyle.PLAIN if answer.good is None else TextStyle.LIVE if answer.good else TextStyle.BAD
        self.notice.say(answer.text, style)

    def _report(self, answer: Answer) -> None:
        """From the reading thread: say it on the screen's."""
        self.app.call_later(self.tell, answer)

    def offers(self, binding: Binding) -> bool:
        """Whether the footer shows a key that may be pressed: of two that close a page, or end a zoom, one."""
        if binding.action == "freeze" and not self.logs.freeze_word():
            return False
        return binding.action != "zoom" or (self._zoomed not in PAGES and self._closes() != "end zoom")

    def word_of(self, binding: Binding) -> str:
        """What the footer says of a key: what it does now."""
        match binding.action:
            case "back":
                return self._closes() or "to the list"
            case "smaller_batch" if self.app.size.width < ROOMY_FOOTER:
                return "batch"
            case "freeze":
                return self.logs.freeze_word()
            case "zoom" if self._zoomed is not None:
                return "end zoom"
            case action if action.startswith("answer("):
                return self._answer_word(ANSWER_KEYS.index(binding.key)) or binding.description
            case _:
                return binding.description

    def _answer_word(self, at: int) -> str:
        """An answer to what is asked on the card, as short as it is."""
        question = self.snapshot.state.open_question if self.snapshot is not None else None
        fitting = question.answers[at : at + 1] if question is not None else ()
        is_word = question is not None and question.what is Unread.SCOPE
        return "".join(one.value.replace("_", " ") if is_word else one.value for one in fitting)

    def _closes(self) -> str:
        """What the key that goes back closes first, the innermost of what is open; empty: nothing is."""
        page = self._searchable()
        if isinstance(self.focused, Panel) and (word := self.focused.closes()):
            return word
        if page is not None and page.search:
            return "close search"
        if self._zoomed in PAGES:
            return "close page"  # it covers a search in the log
        if self.logs.searched:
            return "close search"
        if self.logs.query:
            return "clear filter"
        return "end zoom" if self._zoomed is not None else ""

    def leave_word(self, snapshot: Snapshot) -> str:
        """What the footer says of leaving."""
        return leave_word(snapshot)

    def _offer(self) -> None:
        """The footer's keys, from the live bindings; the one that is recommended first."""
        wanted = recommended(self.snapshot, self._zoomed) if self.snapshot is not None else ""
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
        hints = [hint for hint in hints if hint.action not in {"leave", f"page('{self._zoomed}')"}]
        inner = self._inner_hints()
        unique = list({hint.key: hint for hint in [*hints, *inner]}.values())
        unique.sort(key=self._footer_place(wanted, inner))
        word = self.leave_word(self.snapshot) if self.snapshot else "leave"
        self.query_one("#footer", FooterBar).offer(tuple(unique), Hint("q", word, "leave"))

    def _inner_hints(self) -> list[Hint]:
        """Of a search that is open, and the own keys of what stands alone."""
        own: list[Hint] = []
        if isinstance(self.focused, Panel) and (word := self.focused.closes()):
            own.append(Hint("Esc", word, "focused.plain"))
        page = self._searchable()
        for key, word, way in (("n", "next match", 1), ("N", "match before", -1)):
            if self.check_action("match", (way,)):
                own.append(Hint(key, self.logs.match_word(way) if page is None else word, f"match({way})"))
        if self._zoomed is not None:
            own += [Hint(*key) for key in self.query_one(f"#{self._zoomed}", Panel).inner_keys()]
        return own

    def _footer_place(self, wanted: str, inner: list[Hint]) -> Callable[[Hint], int]:
        """Which hints come first: the recommended one, help, Esc and Enter; a page's own keys; then what a person mostly needs."""
        live = self.snapshot is not None and is_live(self.snapshot) and not shows_failure(self.snapshot)
        usual = USUAL_FIRST if live and not wanted else ()

        def place(hint: Hint) -> int:
            if hint.action == wanted:
                return 0
            if hint.key in {"?", "Esc", "Enter"}:
                return 1
            if hint in inner or hint.action in self.FIRST_ACTIONS:
                return 2
            if hint.action == "freeze" and not self.logs.following:
                return 3  # the way back
            if inner and hint.action == "search":
                return 3
            return 4 + usual.index(hint.action) if hint.action in usual else 4 + len(usual)

        return place

    def _zoom(self, name: str | None) -> None:
        super()._zoom(name)
        self.notice.page = name
        self.notice.repaint()
        self._offer()

    def on_resize(self, _event: events.Resize) -> None:
        """Another width has room for other words."""
        if self.is_mounted:
            self._offer()

    def on_descendant_focus(self, _event: events.DescendantFocus) -> None:
        """Another pane has the keys: other keys do something."""
        self._offer()

    def on_panel_keys_changed(self) -> None:
        """A page or pane may have other keys than before, or Esc something else to end."""
        self._offer()

    def action_back(self) -> None:
        """Close the innermost of what is open; where nothing is, go back to the list of runs."""
        page = self._searchable()
        match self._closes():
            case "close search" if page is not None:
                page.search.begin(Query(), 0)
                self._offer()
            case "close search":
                self.logs.clear()
                self.logs.ask(lc.Follow())
            case "clear filter":
                self.logs.clear()
            case "" if self._back is not None:
                self._back()
            case _ if isinstance(self.focused, ChartPanel) and self.focused.closes():
                self.focused.action_plain()
            case _:
                self._zoom(None)

    def action_pane(self, name: str) -> None:
        """Go to a pane; one that does not fit is zoomed."""
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

    def open_beside(self, others: Sequence[RunPaths]) -> None:
        """Show the metrics, with those of other runs in each chart, in place of those before."""
        self._feeder.submit(partial(self._load_beside, others))

    def _load_beside(self, others: Sequence[RunPaths]) -> None:
        """In the reading thread."""
        from supervisor.views.tui.pages.metrics import load_other

        loaded = [load_other(run) for run in others]
        self.app.call_later(self._lay_beside, loaded)

    async def _lay_beside(self, others: list[OtherRun]) -> None:
        if self._zoomed != "metrics":
            await self.action_page("metrics")
        from supervisor.views.tui.pages.metrics import MetricsPage

        self.query_one("#metrics", MetricsPage).compare_with(others)

    def compare_for(self, words: str) -> None:
        """Lay the runs of these names beside this one."""
        self._feeder.submit(partial(self._compare_named, words))

    def _compare_named(self, words: str) -> None:
        """In the reading thread."""
        from supervisor.run.index import RunNotFound, runs_of

        own = self._client.run.root
        try:
            found = runs_of(words, own.parent, os.environ)
        except RunNotFound as error:
            self._report(Answer(str(error), False))
            return
        others = [run for run in found if run.root.resolve() != own.resolve()]
        if others:
            self._load_beside(others)
        else:
            self._report(Answer(f"{words}: this is the run that is open", False))

    def action_compare(self) -> None:
        """Choose the runs whose series are drawn into each chart."""
        from supervisor.views.tui.pages.metrics import MetricsPage
        from supervisor.views.tui.runs.picker import RunPicker

        def closed(chosen: Sequence[RunPaths] | None) -> None:
            if chosen is not None:
                self.open_beside(chosen)

        pages = self.query("#metrics").results(MetricsPage)
        before = [other.run for page in pages for other in page.others]
        self.app.push_screen(RunPicker(self._client.run, before, self._clock, self._feeder), closed)

    def action_zoom(self) -> None:
        """The pane that has the keys alone, or all again."""
        focused = self.focused
        if self._zoomed is not None:
            self._zoom(None)
        elif isinstance(focused, Panel):
            self._zoom(focused.id)

    def action_size(self, log: int, side: int) -> None:
        """Give the log or the right column more space, or less; remembered."""
        memory = memory_of(self.app)
        before, kept = self._layout, memory.kept
        memory.remember(replace(kept, log_more=kept.log_more + log, side_more=kept.side_more + side))
        self._arrange()
        if self._layout == before:  # at its limit: what could not be shown is not remembered
            memory.remember(kept)
        self._show()

    def action_freeze(self) -> None:
        """Let the log stand still, or follow."""
        self.logs.toggle_follow()

    def action_open_reports(self) -> None:
        """In the log, show torchrun's own traceback line by line, or as one line again."""
        rows = self.log_panel.page.rows if self.log_panel.page is not None else ()
        self.logs.fold(next((row for row in reversed(rows) if row.tone is Tone.FOLDED), None))

    def _own_code(self) -> CodeLine | None:
        """The user's own line of the failure that is in sight, on the card or on its page."""
        from supervisor.views.tui.pages.failure import FailurePage

        if self.snapshot is None:
            return None
        if self._zoomed == "failure":
            return self.query_one("#failure", FailurePage).own()
        in_sight = self._card_shown() and self._zoomed in {None, "card"}
        return own_line_of(self.snapshot, self.snapshot.state.attempt) if in_sight else None

    def action_open_code(self) -> None:
        """That line in the person's own editor; a file outside the job's folder only after a yes."""
        from supervisor.views.tui.dialogs.prompts import Confirm
        from supervisor.views.tui.external_editor import editor_argv, run_outside, source_spot

        own, record = self._own_code(), self.snapshot.run_file if self.snapshot is not None else None
        if own is None:
            return
        found = source_spot(own.path, own.line, record.job.cwd if record is not None else None)
        if isinstance(found, str):
            self.tell(Answer(found, False))
            return
        spot, inside = found

        def lend(yes: bool | None) -> None:
            if not yes:
                return
            argv = editor_argv(spot, os.environ)
            trouble = argv if isinstance(argv, str) else run_outside(self.app, argv)
            if trouble:
                self.tell(Answer(trouble, False))

        if inside:
            lend(True)
        else:
            self.app.push_screen(Confirm(f"it lies outside the job's folder: open {spot.path}?"), lend)

    def action_copy(self) -> None:
        """The page in sight, else the failure card, else the pane that has the keys, to the clipboard."""
        pane = self._to_copy()
        text = pane.copied() if pane is not None else ""
        if text:
            self.app.copy_to_clipboard(text)
            lines = len(text.splitlines())
            self.tell(Answer(f"{lines} lines copied (where the terminal allows it: OSC 52)", True))

    def _to_copy(self) -> Panel | None:
        """What a copy is of; without a page, card or chosen pane the log."""
        if self._zoomed is not None:
            return self.query_one(f"#{self._zoomed}", Panel)
        if self._card_shown():
            return self.query_one("#card", FailureCard)
        pane = self.focused if isinstance(self.focused, Panel) else self.query_one("#log", Panel)
        return pane if pane.display else None

    def action_search(self) -> None:
        """Look for words in the page, else in the log, while they are typed."""
        page = self._searchable()
        if page is None:
            self._leave_page()
            self.logs.open_search(self.app)
            return
        from supervisor.views.tui.pages.text_page import open_page_search

        open_page_search(self.app, page, self._offer)

    def _searchable(self) -> Searchable | None:
        """The page of text that stands alone: it can be searched."""
        if self._zoomed not in PAGES or self._zoomed == "metrics":  # that searches its charts by itself
            return None
        return cast("Searchable", self.query_one(f"#{self._zoomed}", Panel))

    def _leave_page(self) -> None:
        if self._zoomed in PAGES:
            self._zoom(None)

    def action_match(self, way: int) -> None:
        """The next match, or the one before: in the log the way the search ran, down a page."""
        page = self._searchable()
        if page is not None:
            page.search.step(way)
        else:
            self.logs.match(way)

    def action_filter(self) -> None:
        """Show only some lines."""
        self._leave_page()
        self.logs.open_filter(self.app)

    def filter_for(self, words: str) -> None:
        """Show only the lines that `words` name, as typed in a filter."""
        self._leave_page()
        if trouble := self.logs.filter(words, self.logs.frozen_row):
            self.tell(Answer(trouble, False))

    def search_for(self, words: str) -> None:
        """Look for words in the log."""
        self._leave_page()
        if trouble := self.logs.search(words, self.logs.frozen_row):
            self.tell(Answer(trouble, False))

    def action_go_step(self) -> None:
        """Ask for a step."""
        from supervisor.views.tui.dialogs.prompts import AskLine, ask_over

        ask_over(
            self, AskLine("step", hint=STEPS), lambda text: text and self.call_later(self.go_step_for, text)
        )

    def command_of(self, typed: str) -> str:
        """A number typed without a command is a step."""
        return f"step {typed}" if CHART_STEPS.fullmatch(typed.strip()) else typed

    async def go_step_for(self, words: str) -> None:
        """Put the cursor of the chart in sight at a step, or its window around several."""
        if self._zoomed not in {"metrics", "loss"}:
            in_sight = self._zoomed is None and self.query_one("#loss").display
            if self._card_shown() and self._zoomed is None and not in_sight:
                await self.action_page("metrics")  # the card stands in the loss's place
            elif not in_sight:
                self.action_pane("loss")
        chart = self.query_one("#metrics" if self._zoomed == "metrics" else "#loss", ChartPanel)
        if trouble := chart.show_steps(words):
            self.tell(Answer(trouble, False))
        else:
            chart.focus()

    def action_rank(self, way: int) -> None:
        """The log of one rank: none, 0, 1, … and round again."""
        self.logs.next_rank(way)

    def action_node(self, way: int) -> None:
        """The log of one node: none, 0, 1, … and round again."""
        if self.snapshot is not None:
            self.logs.next_node([node.number for node in self.snapshot.nodes], way)

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
        from supervisor.views.model.cause_context import where_it_lies
        from supervisor.views.tui.pages.stacks_screen import read_stacks

        path = where_it_lies(self._client.run, cause.attempt or 1, cause.path or "")
        try:
            lines = read_stacks(path)
        except OSError as error:
            self._report(Answer(f"stacks: {error.strerror}: {path}", False))
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
        if snapshot is None:
            self.tell(Answer("nothing of the run is read yet: ask again", False))
        if snapshot is None or self._log_screen is not None:
            return
        from supervisor.views.tui.logs.screen import (
            LogScreen,
        )  # two hundredths of a second that the start need not wait

        def closed(point: LogPoint | None) -> None:
            self._log_screen = None
            if point is not None:
                self._point_at(point)

        nodes, typed = snapshot.node_logs, self.logs.query.typed
        screen = LogScreen(self._client.node, snapshot.state, nodes=nodes, at=at, typed=typed)
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
        """Enter on a rank shows its log; on a node those of its ranks."""
        self._zoom(None)
        query = Query().of(frozenset([message.who])) if message.node is None else Query().at(message.node)
        self.logs.show_only(query, None)
        self.log_panel.focus()

    def on_chart_panel_chosen(self, message: ChartPanel.Chosen) -> None:
        """Enter on a point of a chart shows its line."""
        point = message.point
        if point.step is None and point.time is None:
            self.tell(Answer("its line names no step and no time to find it by", False))
            return
        self.open_log(LogAt(attempt=point.attempt, step=point.step, t=point.time))

    def _can_go_back(self) -> bool:
        if not self.is_mounted:
            return False
        return bool(self._closes() or self._back)
