"""Actions that only show something, such as panes, pages, the log or other runs, and send no requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from supervisor.job.errors import JobError
from supervisor.run.index import runs_of
from supervisor.run.state import AttemptState
from supervisor.views.logs import reading as lc
from supervisor.views.logs.query import Query
from supervisor.views.logs.reading import LogAt
from supervisor.views.logs.session import LogSession
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.dashboard.panes import Panes
from supervisor.views.tui.pages.log_pane import LogPanel
from supervisor.views.tui.pages.text_page import PAGES
from supervisor.views.tui.panels.failure_card import own_line_of
from supervisor.views.tui.shell.feeder import Answer, RunAccess
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.phrases import is_stacks

if TYPE_CHECKING:
    from supervisor.run.paths import RunPaths
    from supervisor.text.tracebacks import CodeLine
    from supervisor.views.tui.pages.metrics import OtherRun

# Used until the pane has a size: more rows than most terminals have.
FIRST_ROWS = 50
OTHER_RUNS = "names of runs, such as brave-otter calm-crane"


class Looking:
    """Actions that change the view.

    Args:
        panes: the visible panes.
        access: how to reach the run.
        deliver: called with each page and remark, in the thread that reads the log.
        back: returns to the list of runs, or None if the run was not opened from the list.
    """

    def __init__(
        self,
        panes: Panes,
        access: RunAccess,
        deliver: Callable[[lc.Answer], object],
        back: Callable[[], None] | None,
    ) -> None:
        self.panes, self.back = panes, back
        self._access, self._logs = access, panes.log
        self.session = LogSession(access.client.node, deliver)
        panes.log.connect(self.session, panes.notice)
        self._known: tuple[object, ...] = ()

    def can(self, name: str) -> bool:
        """Check whether an action would change the view now."""
        match name:
            case "back":
                return bool(self.closes() or self.back)
            case "node":
                return self.panes.snapshot is not None and bool(self.panes.snapshot.nodes)
            case "open_code":
                return self._own_code() is not None
            case "copy":
                return self._to_copy() is not None
            case "match":
                return bool(self._logs.searched) and self.panes.zoomed not in PAGES
            case _:
                return True

    # -- panes and pages -----------------------------------------------------------------------------------

    def closes(self) -> str:
        """Return a label for what the back key closes next, innermost first, or "" if nothing is open."""
        focused = self.panes.focused
        if focused is not None and (word := focused.closes()):
            return word
        if self.panes.zoomed in PAGES:
            return "close page"  # the page covers a search in the log
        if self._logs.searched:
            return "close search"
        if self._logs.lines_query:
            return "clear filter"
        return "end zoom" if self.panes.zoomed is not None else ""

    def action_back(self) -> None:
        """Close the innermost open view. If nothing is open, return to the list of runs."""
        focused = self.panes.focused
        match self.closes():
            case "close search":
                self._logs.clear()
                if not self._logs.is_whole:
                    self._logs.toggle_follow(on=True)
            case "clear filter":
                self._logs.clear()
            case "" if self.back is not None:
                self.back()
            case _ if isinstance(focused, ChartPanel | LogPanel) and focused.closes():
                focused.action_plain()
            case _:
                self.panes.zoom(None)

    def action_pane(self, name: str) -> None:
        """Focus a pane, zooming it if it is not currently visible."""
        wanted = self.panes.find("card" if name == "loss" and self.panes.is_card_shown else name)
        self.panes.zoom(None)
        if not wanted.display or not (wanted.parent and getattr(wanted.parent, "display", True)):
            self.panes.zoom(wanted.id)
        wanted.focus()

    async def action_page(self, name: str) -> None:
        """Show a page on its own. The same key returns to the panes."""
        if self.panes.zoomed == name:
            self.panes.zoom(None)
            return
        page = await self.panes.page(name)
        self.panes.zoom(name)
        page.focus()

    def action_zoom(self) -> None:
        """Toggle between the focused pane and all panes."""
        if self.panes.zoomed is not None:
            self.panes.zoom(None)
        elif self.panes.focused is not None:
            self.panes.zoom(self.panes.focused.id)

    def leave_page(self) -> None:
        """Return to the panes if a page covers them."""
        if self.panes.zoomed in PAGES:
            self.panes.zoom(None)

    # -- other runs ----------------------------------------------------------------------------------------

    def open_beside(self, others: Callable[[], Sequence[RunPaths]]) -> None:
        """Show the metrics with the curves of other runs in each chart. `others` is called in the reader thread."""
        from supervisor.views.tui.pages.metrics import load_other

        def load() -> None:
            try:
                found = [load_other(run) for run in others()]
            except (OSError, ValueError, JobError) as error:
                self.panes.report(Answer(str(error), False))
            else:
                self.panes.screen.app.call_later(self._show_beside, found)

        self._access.feeder.submit(load)

    async def _show_beside(self, others: list[OtherRun]) -> None:
        from supervisor.views.tui.pages.metrics import MetricsPage

        if self.panes.zoomed != "metrics":
            await self.action_page("metrics")
        self.panes.screen.query_one(MetricsPage).compare_with(others)

    def action_compare(self) -> None:
        """Ask which runs' series to draw in each chart."""
        from supervisor.views.tui.pages.metrics import MetricsPage
        from supervisor.views.tui.shell.prompts import AskLine, ask_over

        pages = self.panes.screen.query(MetricsPage)
        before = " ".join(other.run.run_id for page in pages for other in page.others)
        ask_over(self.panes.screen, AskLine("compare with", before, hint=OTHER_RUNS), self.compare_for)

    def compare_for(self, words: str) -> None:
        """Draw the named runs' curves beside this run's, or only this run's if there are no names."""
        folder = self._access.client.run.root.parent
        self.open_beside(lambda: runs_of(words, folder, os.environ) if words.strip() else ())

    # -- the code of a failure, and copies -------------------------------------------------------------------

    def _failed_attempt(self) -> AttemptState | None:
        """Return the attempt shown on the failure page or the card, or None if neither is visible."""
        from supervisor.views.tui.pages.failure import FailurePage

        if self.panes.zoomed == "failure":
            return self.panes.screen.query_one(FailurePage).attempt
        is_card_seen = self.panes.is_card_shown and self.panes.zoomed in {None, "card"}
        return self.panes.snapshot.state.attempt if is_card_seen and self.panes.snapshot is not None else None

    def _own_code(self) -> CodeLine | None:
        """The line of the user's own code in the visible failure, if any."""
        snapshot, attempt = self.panes.snapshot, self._failed_attempt()
        return own_line_of(snapshot, attempt) if snapshot is not None and attempt is not None else None

    def action_open_code(self) -> None:
        """Open the failing line of the user's own code in their editor. Ask first if the file is outside the job's folder."""
        from supervisor.views.tui.shell.external_editor import editor_argv, run_outside, source_spot
        from supervisor.views.tui.shell.prompts import Confirm

        own, snapshot, app = self._own_code(), self.panes.snapshot, self.panes.screen.app
        assert own is not None, "the key is available"
        record = snapshot.run_file if snapshot is not None else None
        found = source_spot(own.path, own.line, record.job.cwd if record is not None else None)
        if isinstance(found, str):
            self.panes.tell(Answer(found, False))
            return
        spot, inside = found

        def open_it(yes: bool | None) -> None:
            if not yes:
                return
            argv = editor_argv(spot, os.environ)
            if trouble := argv if isinstance(argv, str) else run_outside(app, argv):
                self.panes.tell(Answer(trouble, False))

        if inside:
            open_it(True)
        else:
            app.push_screen(Confirm(f"it lies outside the job's folder: open {spot.path}?"), open_it)

    def action_copy(self) -> None:
        """Copy the visible page to the clipboard, or else the failure card, or else the focused pane."""
        pane = self._to_copy()
        if pane is not None and (text := pane.copied()):
            self.panes.screen.app.copy_to_clipboard(text)
            lines = len(text.splitlines())
            self.panes.tell(Answer(f"{lines} lines copied (where the terminal allows it: OSC 52)", True))

    def _to_copy(self) -> Panel | None:
        """Return the pane to copy, which is the log if there is no page, card or focused pane."""
        if self.panes.zoomed is not None:
            return self.panes.find(self.panes.zoomed)
        if self.panes.is_card_shown:
            return self.panes.card
        pane = self.panes.focused or self.panes.log
        return pane if pane.display else None

    # -- the log -------------------------------------------------------------------------------------------

    def start_reading(self) -> None:
        """Read the log once its pane is mounted."""
        self._logs.resize(FIRST_ROWS)
        self.session.start()

    def update_log(self, snapshot: Snapshot) -> None:
        """Pass on the list of logs and the line where the latest failure began."""
        attempt = snapshot.state.attempt
        verdict = attempt.verdict if attempt is not None and attempt.ended_t is not None else None
        cause = verdict.cause if verdict is not None and attempt is not None and attempt.failure else None
        line = None
        if attempt is not None and cause is not None and cause.line is not None:
            line = LogAt(attempt.number, path=cause.path, line=cause.line, text=cause.text)
        nodes = snapshot.node_logs
        known = (lc.log_facts(snapshot.state, nodes), line, snapshot.recorded_t)
        if known != self._known:
            self._known = known
            self.session.tell(lambda view: view.update(snapshot.state, snapshot.recorded_t, nodes))
            self.session.tell(lambda view: view.keep_cause(line))

    def take(self, answer: lc.Answer) -> None:
        """Show what the reader thread has delivered."""
        match answer:
            case lc.Page() as page:
                self._logs.take(page)
                # The table is about the newest attempt, whichever the log shows.
                self.panes.ranks.take_lines(page.last_lines if page.attempt == page.attempts else {})
            case lc.Remark() as remark:
                self._logs.report(remark)
            case lc.Copied() as copied:
                self.panes.screen.app.copy_to_clipboard(copied.text)
                lines = f"{copied.lines} lines" if copied.lines != 1 else "1 line"
                text = f"{lines} copied (where the terminal allows it: OSC 52)"
                self._logs.report(lc.Remark(text, good=True))
            case LogAt() as point:
                self.panes.zoom(None)
                self._point_at(point)

    def open_log(self, at: LogAt | None = None) -> None:
        """Open the log as a full page at a position, or at the current one if `at` is None."""
        self.panes.zoom("log")
        self._logs.focus()
        if at is not None:
            self._logs.ask(lambda view: view.to_place(at))

    def _point_at(self, point: LogAt) -> None:
        """Show a log line's step on the chart."""
        loss = self.panes.loss
        if not loss.show_at(point.step, point.t, point.attempt):
            known = f"step {point.step:g}" if point.step is not None else "that time"
            self.panes.tell(Answer(f"the chart has no point at {known}", False))
        elif loss.display:
            loss.focus()

    def action_search(self) -> None:
        """Search the log as the user types."""
        self.leave_page()
        self._logs.open_search()

    def action_match(self, way: int) -> None:
        """Go to the next match above or below."""
        self._logs.match(-way)

    def action_filter(self) -> None:
        """Filter the log as the user types."""
        self.leave_page()
        self._logs.open_filter()

    def action_freeze(self) -> None:
        """Toggle between freezing and following the log."""
        self._logs.toggle_follow()

    def action_rank(self, way: int) -> None:
        """Cycle the log through all ranks, then rank 0 alone, rank 1 alone and so on."""
        self._logs.next_rank(way)

    def action_node(self, way: int) -> None:
        """Cycle the log through all nodes, then node 0 alone, node 1 alone and so on."""
        assert self.panes.snapshot is not None, "the key is available"
        self._logs.next_node([node.number for node in self.panes.snapshot.nodes], way)

    def show_rank(self, who: str, node: int | None) -> None:
        """Show one rank's log, or the logs of all ranks on a node."""
        self.panes.zoom(None)
        self._logs.show_only(Query().of(who) if node is None else Query().at(node), None)
        self.panes.log.focus()

    async def action_open_log(self) -> None:
        """Open the full log at the displayed cause or the visible line. If the cause is in the stacks, open the stacks page."""
        from supervisor.views.tui.pages.failure import cause_of

        cause = cause_of(self._failed_attempt())
        if cause is not None and is_stacks(cause.path):
            await self.action_page("processes")
        else:
            is_page = self.panes.zoomed == "failure"
            self.open_log((cause if is_page else None) or self.panes.log.place())
