"""Logs on the full screen: any size, any rank, searched, filtered, followed."""

from __future__ import annotations

import os
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from supervisor.run.paths import NodePaths
from supervisor.run.state import RunState
from supervisor.views.logs import reading as lc
from supervisor.views.logs.query import Query
from supervisor.views.logs.reading import BadJumpError, LogAt, parse_jump
from supervisor.views.logs.session import LogSession
from supervisor.views.logs.sources import NodeLogs
from supervisor.views.tui.dialogs.help import HelpScreen, bindings_of, lines_of
from supervisor.views.tui.dialogs.prompts import AskLine
from supervisor.views.tui.logs.controls import LogControls
from supervisor.views.tui.logs.page import LogPanel
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.shell.external_editor import Spot, editor_argv, run_outside
from supervisor.views.tui.shell.screen_base import FooterBar, Hint, KeyScreen
from supervisor.views.wording.phrases import is_stacks

MATCHES = ("match(1)", "match(-1)")
GROUPS = {"go": "go", "which": "which lines", "take": "take along", "leave": "leave"}


def _key(
    key: str, action: str, word: str, shown: str, group: str, tooltip: str, *, show: bool = True
) -> Binding:
    return Binding(
        key, action, word, key_display=shown, show=show, tooltip=tooltip, id=f"log.{group}.{action}.{key}"
    )


# In the footer's order; keys that do not fit are dropped from the end.
LOG_KEYS: list[BindingType] = [
    _key("question_mark,f1", "help", "help", "?", "leave", "this help"),
    _key("escape", "back", "back", "Esc", "leave", "clear selection, search, filter; then back to the dashboard"),
    _key("slash", "search", "search", "/", "go", "search: words in any case, or /an expression/"),
    _key("n", "match(-1)", "↑ older", "n", "go", "the next older match: a search runs up from the newest line"),
    _key("N", "match(1)", "↓ newer", "N", "go", "the next newer match"),
    _key(
        "f,backslash", "filter", "filter", "f", "which",
        "filter: words, -without, /expression/, r0-3, node:1, level:warn, stream:stderr",
    ),
    _key("space", "freeze", "freeze", "Space", "go", "stand still, or follow the newest line"),
    _key("colon", "jump", "line, time", ":", "go", "go to a line (812), a step (step 1200) or a time (14:52, 2026-11-21 14:52)"),
    _key("F", "failure", "failure", "F", "go", "go to the line that caused the failure"),
    _key("right_square_bracket", "rank(1)", "next rank", "]", "which", "the next rank alone"),
    _key("left_square_bracket", "rank(-1)", "previous rank", "[", "which", "the previous rank", show=False),
    _key("e", "editor", "editor", "e", "take", "open the file in $EDITOR at this line"),
    _key("right_curly_bracket", "node(1)", "next node", "}", "which", "the next node alone", show=False),
    _key("left_curly_bracket", "node(-1)", "previous node", "{", "which", "the previous node", show=False),
    _key("left_parenthesis", "attempt(-1)", "attempt before", "(", "which", "the attempt before", show=False),
    _key("right_parenthesis", "attempt(1)", "attempt after", ")", "which", "the attempt after", show=False),
    _key("w", "wrap", "wrap", "w", "which", "wrap long lines, or cut them"),
    _key("y", "copy", "copy", "y", "take", "copy the line or the selection (V or a drag selects)"),
    _key("c", "chart", "chart", "c", "take", "show this line's step on the charts"),
    _key("q,d,ctrl+c,ctrl+q", "leave", "leave", "q d", "leave", "leave stoker; no training is ended by it"),
]  # fmt: skip


class LogScreen(KeyScreen, Screen[LogAt | None]):
    """All logs of an attempt.

    Args:
        node: the node whose run is shown.
        state: the current state of the run; `take` gives later ones.
        nodes: all nodes of a run on several.
        at: where to open; None: follow the newest lines.
        typed: the lines to show at first, as a typed filter.
    """

    BINDINGS: ClassVar[list[BindingType]] = LOG_KEYS

    class News(Message):
        """The reading thread has news."""

        def __init__(self, answer: lc.Answer) -> None:
            super().__init__()
            self.answer = answer

    def __init__(
        self,
        node: NodePaths,
        state: RunState,
        *,
        nodes: tuple[NodeLogs, ...] = (),
        at: LogAt | None = None,
        typed: str = "",
    ) -> None:
        super().__init__()
        self._state = state
        self._node_logs = nodes
        self._at = at
        self.log_page = LogPanel(id="logpage", has_cursor=True)
        self.notice = NoticeBar(id="notice")
        self._footer = FooterBar(id="footer")
        session = LogSession(node, lambda answer: self.post_message(self.News(answer)))
        self._controls = LogControls(session, self.log_page, self.notice, self._offer)
        self._controls.query = Query.parse(typed)

    def compose(self) -> ComposeResult:
        """A page, remarks, the keys."""
        yield self.log_page
        yield self.notice
        yield self._footer

    def on_mount(self) -> None:
        """Start reading."""
        self.log_page.focus()
        controls, at, query = self._controls, self._at, self._controls.query
        controls.update(self._state, nodes=self._node_logs)
        controls.resize(max(self.app.size.height - 4, 1))
        if query:
            controls.ask(lambda view: view.show(query))
        if at is not None and at != LogAt():
            controls.ask(lambda view: view.to_place(at))
        controls.session.start()
        self._offer()

    def on_unmount(self) -> None:
        """End the threads."""
        self._controls.session.stop()

    def take(self, state: RunState, nodes: tuple[NodeLogs, ...] = ()) -> None:
        """Show the run's newer state."""
        known = lc.log_facts(self._state, self._node_logs)
        self._state, self._node_logs = state, nodes
        if known != lc.log_facts(state, nodes):
            self._controls.update(state, nodes=nodes)
        self._offer()

    def on_log_screen_news(self, message: News) -> None:
        """Show it."""
        match message.answer:
            case lc.Page() as page:
                self._controls.take(page)
            case lc.Remark() as remark:
                self._controls.report(remark)
            case lc.Copied() as copied:
                self.app.copy_to_clipboard(copied.text)
                lines = f"{copied.lines} lines" if copied.lines != 1 else "1 line"
                text = f"{lines} copied (where the terminal allows it: OSC 52)"
                self._controls.report(lc.Remark(text, good=True))
            case LogAt() as point:
                self.dismiss(point)

    def _offer(self) -> None:
        useless = {"freeze"} if not self._controls.freeze_word() else set()
        useless |= {"leave"} if self._controls.searched else {"leave", *MATCHES}
        hints = [
            Hint("[ ]", "rank", a.binding.action)
            if a.binding.action == "rank(1)"
            else Hint(a.binding.key_display or a.binding.key, self._word(a.binding), a.binding.action)
            for a in self.active_bindings.values()
            if a.binding.show and a.enabled and a.node is self and a.binding.action not in useless
        ]
        if self.log_page.mark is not None:  # the actions on a selection come first
            hints.sort(key=lambda hint: (hint.action not in {"help", "back"}, hint.action != "copy"))
        self._footer.offer(tuple(dict.fromkeys(hints)), Hint("q", "leave", "leave"))

    def _word(self, binding: Binding) -> str:
        """The footer's word for a key now."""
        match binding.action:
            case "back":
                return self._closes() or binding.description
            case "freeze":
                return self._controls.freeze_word()
            case "wrap" if self.log_page.wraps:
                return "cut lines"
            case _:
                return binding.description

    def _closes(self) -> str:
        """What the back key ends first, the innermost open thing; empty: nothing."""
        if self.log_page.mark is not None:
            return "end selection"
        if self._controls.searched:
            return "close search"
        if self._controls.query:
            return "clear filter"
        return "give up" if self._controls.is_looking else ""

    def on_panel_keys_changed(self) -> None:
        """A selection, or a long scan of the log, began or ended."""
        self._offer()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action has an effect now."""
        if action == "failure":
            return self._cause() is not None
        if action == "node":
            return bool(self._node_logs)
        if action == "attempt":
            return len(self._state.attempts) > 1 or not parameters
        return True

    # -- moving ------------------------------------------------------------------------------------------

    def action_freeze(self) -> None:
        """Freeze, or follow."""
        self._controls.toggle_follow()

    def action_jump(self) -> None:
        """Ask for a line, a step or a time."""
        here = self.log_page.row

        def entered(text: str) -> str:
            if not text.strip():
                return ""
            try:
                at = parse_jump(text)
            except BadJumpError as error:
                return str(error)
            self._controls.ask(lambda view: view.to_place(at, here))
            return ""

        hint = "a line (812), a step (step 1200), a time (14:52)"
        self.app.push_screen(AskLine("go to", hint=hint, entered=entered))

    def action_failure(self) -> None:
        """Go to the line that caused the failure."""
        cause = self._cause()
        if cause is not None:
            if self._controls.query:
                self._controls.show_only(Query(), None)
            self._controls.ask(lambda view: view.to_place(cause))

    def _cause(self) -> LogAt | None:
        """The cause in the newest attempt with one; the visible attempt first."""
        page = self.log_page.page if self.is_mounted else None
        shown = [a for a in self._state.attempts if page is not None and a.number == page.attempt]
        for attempt in [*shown, *reversed(self._state.attempts)]:
            cause = attempt.verdict.cause if attempt.verdict is not None else None
            if cause is not None and cause.line is not None and not is_stacks(cause.path):
                return LogAt(attempt=attempt.number, path=cause.path, line=cause.line)
        return None

    # -- filters -------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Search while typing."""
        self._controls.open_search(self.app)

    def action_match(self, way: int) -> None:
        """The next or previous match."""
        if not self._controls.searched:
            self._controls.report(lc.Remark("nothing is searched for: / searches", good=False))
            return
        self._controls.match(way)

    def action_filter(self) -> None:
        """Filter the lines while typing."""
        self._controls.open_filter(self.app)

    def action_rank(self, way: int) -> None:
        """Show a single rank: none, 0, 1, … and round again."""
        self._controls.next_rank(way)

    def action_node(self, way: int) -> None:
        """Show a single node: none, 0, 1, … and round again."""
        self._controls.next_node([node.number for node in self._node_logs], way)

    def action_attempt(self, way: int) -> None:
        """The logs of the previous or next attempt."""
        self._controls.ask(lambda view: view.other_attempt(way))

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.log_page.toggle_wrap()
        self._offer()

    # -- copy & open -------------------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Copy the selection, or else the line under the cursor, to the clipboard."""
        chosen = self.log_page.selection
        if chosen is not None:
            self._controls.ask(lambda view: view.copied(*chosen))
            self.log_page.clear_mark()

    def action_chart(self) -> None:
        """Close, and show the line's step on the charts."""
        here = self.log_page.row
        if here is not None:
            self._controls.ask(lambda view: view.point(here))

    def action_editor(self) -> None:
        """Open the person's own editor."""
        page, here = self.log_page.page, self.log_page.row
        if page is None or here is None:
            return
        index, line = here.parts[0]
        numbers = page.numbers
        number = numbers[self.log_page.cursor] if self.log_page.cursor < len(numbers) else None
        argv = editor_argv(Spot(os.path.abspath(page.logs[index].path), line.offset, number), os.environ)
        trouble = argv if isinstance(argv, str) else run_outside(self.app, argv)
        if trouble:
            self._controls.report(lc.Remark(trouble, good=False))

    # -- leaving -----------------------------------------------------------------------------------------

    def action_back(self) -> None:
        """End a search in progress; else clear the selection, the search, or the filter; else close."""
        match self._closes():
            case "end selection":
                self.log_page.clear_mark()
            case "close search" | "clear filter":
                self._controls.clear()
            case "give up":
                self._controls.toggle_follow(on=False)  # another request ends the one in progress
            case _:
                self.dismiss(None)

    def action_leave(self) -> None:
        """Quit; training continues."""
        self.app.exit()

    def action_help(self) -> None:
        """The keys that work now."""
        mine = [b for b in LOG_KEYS if isinstance(b, Binding)]
        lines = [
            line
            for group, title in GROUPS.items()
            for line in lines_of(self, title, [b for b in mine if (b.id or "").startswith(f"log.{group}.")])
        ]
        self.app.push_screen(
            HelpScreen([*lines, *lines_of(self.log_page, "move", bindings_of(self.log_page))])
        )
