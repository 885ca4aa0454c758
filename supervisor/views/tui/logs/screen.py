"""The logs on the whole screen: any size, any rank, searched, filtered, followed."""

from __future__ import annotations

import os
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from supervisor.run.paths import NodePaths
from supervisor.run.state import RunState
from supervisor.views.logs import commands as lw
from supervisor.views.logs.jump import BadJumpError, parse_jump
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.place import LogAt, LogPoint
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.logs.session import LogSession
from supervisor.views.tui.dashboard.bars import FooterBar, Hint
from supervisor.views.tui.dialogs.help import HelpLine, HelpScreen
from supervisor.views.tui.dialogs.prompts import AskLine
from supervisor.views.tui.frames import QuickFrames
from supervisor.views.tui.logs.keys import GROUPS, LOG_KEYS
from supervisor.views.tui.logs.page import LogPage
from supervisor.views.tui.logs.status import LogStatus
from supervisor.views.tui.outside import Spot, editor_argv, pager_argv, run_outside
from supervisor.views.tui.widgets.panel import tr_of
from supervisor.views.wording.places import is_stacks

STREAMS = ("", "stdout", "stderr")


class LogScreen(QuickFrames, Screen[LogPoint | None]):
    """All logs of an attempt.

    Args:
        node: whose run is shown.
        state: the run as it stands; `take` tells later ones.
        at: where to open; None: the newest lines, followed.
        typed: which lines to show at first, as typed in a filter.
    """

    BINDINGS: ClassVar[list[BindingType]] = LOG_KEYS

    class News(Message):
        """The reading thread has something."""

        def __init__(self, news: lw.News) -> None:
            super().__init__()
            self.news = news

    def __init__(self, node: NodePaths, state: RunState, *, at: LogAt | None = None, typed: str = "") -> None:
        super().__init__()
        self._state = state
        self._session = LogSession(node, lambda news: self.post_message(self.News(news)))
        self._at = at
        self._query = Query.parse(typed)
        self._searched = Query()

    def compose(self) -> ComposeResult:
        """A page, a line below it, the keys."""
        yield LogPage(id="logpage")
        yield LogStatus(id="logstatus")
        yield FooterBar(id="footer")

    @property
    def log_page(self) -> LogPage:
        """The rows."""
        return self.query_one("#logpage", LogPage)

    @property
    def status(self) -> LogStatus:
        """The line below."""
        return self.query_one("#logstatus", LogStatus)

    def on_mount(self) -> None:
        """Begin to read."""
        self.log_page.focus()
        self._session.ask(lw.Known(self._state), lw.Size(self._rows()))
        if self._query:
            self._session.ask(lw.Show(self._query))
        if self._at is not None and self._at != LogAt():
            self._session.ask(lw.ToPlace(self._at))
        self._session.start()
        self._offer()

    def on_unmount(self) -> None:
        """End the threads."""
        self._session.stop()

    def on_resize(self, event: events.Resize) -> None:
        """Another number of rows."""
        self._session.ask(lw.Size(self._rows(event.size.height)))

    def _rows(self, height: int | None = None) -> int:
        return max((height or self.app.size.height) - 4, 1)

    def take(self, state: RunState) -> None:
        """The run has moved on."""
        known = self._state
        self._state = state
        if [(a.number, a.ranks) for a in known.attempts] != [(a.number, a.ranks) for a in state.attempts]:
            self._session.ask(lw.Known(state))
        self._offer()

    def on_log_screen_news(self, message: News) -> None:
        """Show it."""
        match message.news:
            case lw.Page() as page:
                self._show(page)
            case lw.Said() as said:
                self.status.say(said)
            case lw.Copied() as copied:
                self.app.copy_to_clipboard(copied.text)
                lines = f"{copied.lines} lines" if copied.lines != 1 else "1 line"
                self.status.say(lw.Said(f"{lines} copied (where the terminal allows it: OSC 52)", good=True))
            case lw.Pointed() as pointed:
                self.dismiss(pointed.point)

    def _show(self, page: lw.Page) -> None:
        shown = self.log_page.page
        if shown is not None and page.made < shown.made:
            return  # it was on its way here when a key led on
        self._query = page.query
        self.log_page.take(page)
        self.status.settle()
        self._tell_place()
        if shown is None or shown.following != page.following:
            self._offer()

    def _move(self, wish: lw.Move) -> None:
        page = self._session.move(wish)
        if page is not None:
            self._show(page)

    def _tell_place(self) -> None:
        status = self.status
        status.page = self.log_page.page
        status.here = self.log_page.cursor
        status.repaint()

    def _offer(self) -> None:
        hints = [
            Hint(a.binding.key_display or a.binding.key, self._word(a.binding), a.binding.action)
            for a in self.active_bindings.values()
            if a.binding.show and a.enabled and a.node is self and a.binding.action != "leave"
        ]
        self.query_one("#footer", FooterBar).offer(tuple(dict.fromkeys(hints)), Hint("q", "leave", "leave"))

    def _word(self, binding: Binding) -> str:
        """What a key does now."""
        page = self.log_page.page
        frozen = page is not None and not page.following
        return "follow" if binding.action == "freeze" and frozen else binding.description

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What leads somewhere."""
        if action == "match":
            return bool(self._searched)
        if action == "failure":
            return self._cause() is not None
        if action == "attempt":
            return len(self._state.attempts) > 1 or not parameters
        return True

    def on_footer_bar_pressed(self, message: FooterBar.Pressed) -> None:
        """A click on a hint is its key."""
        self.call_later(self.run_action, message.action)

    # -- moving ------------------------------------------------------------------------------------------

    def on_log_page_beyond(self, message: LogPage.Beyond) -> None:
        """Other rows."""
        self._move(lw.Scroll(message.rows))

    def on_log_page_edge(self, message: LogPage.Edge) -> None:
        """The first rows or the newest."""
        self._move(lw.Start() if message.way < 0 else lw.Follow())

    def on_log_page_stood(self, _message: LogPage.Stood) -> None:
        """Stand still."""
        self._session.ask(lw.Follow(on=False))

    def on_log_page_moved(self, _message: LogPage.Moved) -> None:
        """The place in the line below goes with the cursor."""
        self._tell_place()

    def action_freeze(self) -> None:
        """Stand still, or follow."""
        page = self.log_page.page
        self._session.ask(lw.Follow(on=not (page is not None and page.following)))

    def action_jump(self) -> None:
        """Ask for a line or a time."""

        def closed(text: str | None) -> None:
            if text:
                try:
                    self._session.ask(parse_jump(text, self._stream()))
                except BadJumpError as error:
                    self.status.say(lw.Said(str(error), good=False))

        self.app.push_screen(AskLine("go to line (812) or time (14:52)"), closed)

    def _stream(self) -> int:
        here = self.log_page.row
        return here.parts[0][0] if here is not None else 0

    def action_failure(self) -> None:
        """The line that caused the failure."""
        cause = self._cause()
        if cause is not None:
            if self._query:
                self._session.ask(lw.Show(Query()))
            self._session.ask(lw.ToPlace(cause))

    def _cause(self) -> LogAt | None:
        """Of the newest attempt that has one: the attempt in sight first."""
        page = self.log_page.page if self.is_mounted else None
        shown = [a for a in self._state.attempts if page is not None and a.number == page.attempt]
        for attempt in [*shown, *reversed(self._state.attempts)]:
            cause = attempt.verdict.cause if attempt.verdict is not None else None
            if cause is not None and cause.line is not None and not is_stacks(cause.path):
                return LogAt(attempt=attempt.number, path=cause.path, line=cause.line)
        return None

    # -- which lines ---------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Look for words while they are typed."""
        start = self._frozen_row()
        before = self._searched.typed

        def closed(text: str | None) -> None:
            if text is None and before:
                self._search(before, start)
            elif not text:
                self._search("", None)

        label = "search (words, or /expression/)"
        self.app.push_screen(AskLine(label, before, lambda text: self._search(text, start)), closed)

    def _frozen_row(self) -> LogRow | None:
        page = self.log_page.page
        return None if page is None or page.following else self.log_page.row

    def _search(self, typed: str, start: LogRow | None) -> None:
        try:
            query = Query.search(typed)
        except BadQueryError as error:
            self.status.say(lw.Said(str(error), good=False))
            return
        self.status.say(None)
        if query == self._searched:
            return
        self._searched = query
        self._session.ask(lw.Find(query, start))
        self._offer()

    def action_match(self, way: int) -> None:
        """The next match, up or down."""
        self._session.ask(lw.Match(self._frozen_row(), way))

    def action_filter(self) -> None:
        """Show only some lines, while they are named."""
        before = self._query
        stood = self._frozen_row()

        def typed(text: str) -> None:
            try:
                self._session.ask(lw.Show(Query.parse(text), stood))
                self.status.say(None)
            except BadQueryError as error:
                self.status.say(lw.Said(str(error), good=False))

        def closed(text: str | None) -> None:
            if text is None:
                self._session.ask(lw.Show(before, stood))

        label = "filter (words, -without, /expression/, r0-3, level:warn)"
        self.app.push_screen(AskLine(label, f"{before.typed} ".lstrip(), typed), closed)

    def action_rank(self, way: int) -> None:
        """One rank alone: none, 0, 1, … and round again."""
        page = self.log_page.page
        names = (
            list(dict.fromkeys(log.who for log in page.logs if log.who.isdigit())) if page is not None else []
        )
        if not names:
            names = sorted({who for each in page.rows for who in each.who if who.isdigit()}) if page else []
        circle = [frozenset[str](), *(frozenset([name]) for name in names)]
        now = circle.index(self._query.who) if self._query.who in circle else 0
        self._session.ask(lw.Show(self._query.of(circle[(now + way) % len(circle)]), self._frozen_row()))

    def action_stream(self) -> None:
        """Both streams, stdout alone, stderr alone."""
        now = STREAMS.index(self._query.stream) if self._query.stream in STREAMS else 0
        self._session.ask(lw.Show(self._query.on(STREAMS[(now + 1) % len(STREAMS)]), self._frozen_row()))

    def action_fold(self) -> None:
        """Open torchrun's own traceback, or make it one line again."""
        self._session.ask(lw.Fold(self.log_page.row))

    def action_attempt(self, way: int) -> None:
        """The logs of the attempt before or after."""
        self._session.ask(lw.Attempt(way))

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.log_page.toggle_wrap()

    # -- take along --------------------------------------------------------------------------------------

    def action_copy(self) -> None:
        """The selection, else the line under the cursor, to the clipboard."""
        chosen = self.log_page.selection
        if chosen is not None:
            self._session.ask(lw.Copy(*chosen))
            self.log_page.clear_mark()

    def action_chart(self) -> None:
        """Close, and show the line's step on the charts."""
        here = self.log_page.row
        if here is not None:
            self._session.ask(lw.Point(here))

    def action_pager(self) -> None:
        """The person's own pager."""
        spot = self._spot()
        if spot is not None:
            self._lend(pager_argv(spot, os.environ))

    def action_editor(self) -> None:
        """The person's own editor."""
        spot = self._spot()
        if spot is not None:
            self._lend(editor_argv(spot, os.environ))

    def _spot(self) -> Spot | None:
        page, here = self.log_page.page, self.log_page.row
        if page is None or here is None:
            return None
        index, line = here.parts[0]
        numbers = page.numbers
        number = numbers[self.log_page.cursor] if self.log_page.cursor < len(numbers) else None
        return Spot(os.path.abspath(page.logs[index].path), line.offset, number)

    def _lend(self, argv: list[str] | str) -> None:
        trouble = argv if isinstance(argv, str) else run_outside(self.app, argv)
        if trouble:
            self.status.say(lw.Said(trouble, good=False))

    # -- leaving -----------------------------------------------------------------------------------------

    def action_back(self) -> None:
        """Clear the selection, else the search, else the filter; else close."""
        if self.log_page.clear_mark():
            return
        if self._searched:
            self._search("", None)
        elif self._query:
            self._session.ask(lw.Show(Query(), self._frozen_row()))
        else:
            self.dismiss(None)

    def action_leave(self) -> None:
        """Leave; training goes on."""
        self.app.exit()

    def action_help(self) -> None:
        """All keys."""
        tr = tr_of(self)
        mine = [b for b in LOG_KEYS if isinstance(b, Binding)]
        lines = [
            HelpLine(
                tr(title),
                b.key_display or b.key,
                tr(b.tooltip),
                bool(self.check_action(b.action.partition("(")[0], ())),
            )
            for group, title in GROUPS.items()
            for b in mine
            if (b.id or "").startswith(f"log.{group}.")
        ]
        lines += [
            HelpLine(tr("move"), b.key.replace(",", "  "), tr(b.description), True)
            for b in LogPage.BINDINGS
            if isinstance(b, Binding)
        ]
        self.app.push_screen(HelpScreen(lines))
