"""The log pane: the newest lines of all ranks, followed or frozen, filtered, searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.run.records import Cause, Verdict
from supervisor.views import format as fm
from supervisor.views.logs.newest import LogLine, LogNews, Tone
from supervisor.views.logs.place import LogAt
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.logs.buffer import Entry, LogBuffer, LogFilter
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, fit, row
from supervisor.views.tui.widgets.panel import Panel

TONES = {
    Tone.PLAIN: TextStyle.PLAIN,
    Tone.WARN: TextStyle.WARN,
    Tone.BAD: TextStyle.BAD,
    Tone.NOTE: TextStyle.DIM,
    Tone.FOLDED: TextStyle.DIM,
}
WHO_WIDTH = 9
WHEEL_LINES = 3
SIDE_CELLS = 16
# Of the pane, so much below the line that a failure began with.
BELOW_ROOT = 3


class LogPanel(Panel, can_focus=True):
    """Lines of the run's files as they come."""

    number = 4
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k,up", "scroll_lines(-1)", "up", show=False),
        Binding("j,down", "scroll_lines(1)", "down", show=False),
        Binding("pageup,ctrl+u", "scroll_pages(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d", "scroll_pages(1)", "page down", show=False),
        Binding("g,home", "oldest", "oldest line", show=False),
        Binding("G,end", "follow", "newest line, follow", show=False),
        Binding("left,h", "side(-1)", "left", show=False),
        Binding("right", "side(1)", "right", show=False),
    ]

    class LookedBack(Message):
        """A person looks for what came earlier, for the first time."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.buffer = LogBuffer()
        self._looked_back = self._wants_oldest = False
        self.search = ""
        self.match: int | None = None
        self._open: tuple[LogLine, ...] = ()
        self._end: int | None = None  # index after the last line in sight; None: follow
        self._side = 0
        self._page = 1
        self._has_sources = False
        self._passed: Verdict | None = None  # whose root line a person has scrolled away from
        self._root: tuple[object, int | None] = (None, None)
        self._bottom: int | None = (
            None  # index after the last line in sight, while the root line is kept in sight
        )

    @property
    def following(self) -> bool:
        """Whether new lines move the pane."""
        return self._end is None

    def take(self, news: LogNews) -> None:
        """Lines that were added."""
        if news.earlier:
            self._put_before(news.earlier)
        gone = self.buffer.add(news.lines)
        if self._end is not None:
            self._end = max(self._end - gone, min(self._page, len(self.buffer.visible)))
            self.match = self.match - gone if self.match is not None and self.match >= gone else None
        self._open = news.open_lines
        self._has_sources = bool(news.sources)

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """What was added."""
        attempt = snapshot.state.attempt
        return (snapshot.logs, attempt.verdict if attempt is not None else None)

    @property
    def _verdict(self) -> Verdict | None:
        """Why the newest attempt ended, while no other has begun."""
        attempt = self.view.snapshot.state.attempt if self.view is not None else None
        if attempt is None or attempt.ended_t is None or attempt.failure is None:
            return None
        return attempt.verdict

    def _root_line(self) -> int | None:
        """Index within what is visible of the line that the newest failure began with."""
        verdict, visible = self._verdict, self.buffer.visible
        if verdict is None or verdict.cause is None or verdict.cause.line is None:
            return None
        key = (verdict, self.buffer.total, len(visible), self.buffer.filter)
        if self._root[0] != key:
            self._root = (key, root_of(visible, verdict.cause))
        return self._root[1]

    def _passes(self) -> None:
        """A person moves: the root line is no longer kept in sight."""
        if self._bottom is not None:
            self._end = self._bottom
        self._passed, self._bottom = self._verdict, None

    def _put_before(self, lines: Sequence[LogLine]) -> None:
        """Lines from before those that are here; what is in sight stays in sight."""
        visible = self.buffer.visible
        last = visible[self._end - 1] if self._end else None
        match = visible[self.match] if self.match is not None else None
        self.buffer.put_before(lines)
        for index, entry in enumerate(self.buffer.visible):
            if entry is last:
                self._end = index + 1
            if entry is match:
                self.match = index
        if self.search and self.match is None:
            self.set_search(self.search)
        elif self._wants_oldest and (self._end is not None or len(self.buffer.visible) > self._page):
            self._end = self._page
        self._wants_oldest = False

    def _look_back(self) -> None:
        """What was not read when the run was opened is read once somebody wants it."""
        if not self._looked_back:
            self._looked_back = True
            self.post_message(self.LookedBack())

    def set_filter(self, wanted: LogFilter) -> None:
        """Show other lines, the newest of them."""
        if wanted:
            self._look_back()
        self.buffer.set_filter(wanted)
        self._end, self.match = None, None
        self.repaint()

    def set_search(self, text: str, *, way: int = 0) -> bool:
        """Look for `text` from the newest line back (`way` 0), or for the next match either way."""
        self.search = text
        if text:
            self._look_back()
        found = None
        if text and self.buffer.visible:
            start = len(self.buffer.visible) - 1 if way == 0 or self.match is None else self.match + way
            found = self.buffer.find(text, start, way or -1)
        self.match = found
        if found is not None and self.buffer.visible[found].inner:
            self.buffer.open_reports(True)  # the words stand in what is folded
            return self.set_search(text, way=way)
        if found is not None:
            self._freeze(min(found + self._page // 2 + 1, len(self.buffer.visible)))
        self.repaint()
        return found is not None

    def place(self) -> LogAt | None:
        """The match, the root line that is kept in sight, else the last line in sight; None while the pane follows."""
        visible = self.buffer.visible
        at = self.match if self.match is not None else self._end - 1 if self._end is not None else None
        at = self._root_line() if at is None and self._bottom is not None else at
        if at is None or not 0 <= at < len(visible) or visible[at].is_rule:
            return None
        return LogAt(attempt=visible[at].attempt, path=visible[at].path, offset=visible[at].offset)

    def open_reports(self) -> None:
        """Show torchrun's own tracebacks line by line, the newest from its head; or each as one line again."""
        visible = self.buffer.visible
        if not self.buffer.opened:
            newest = next((entry for entry in reversed(visible) if entry.inner), None)
            self.buffer.open_reports(True)
            if newest is not None:
                head = next(n for n, e in enumerate(self.buffer.visible) if e is newest.inner[0])
                self._freeze(head + max(self._page - 1, 1))
            self.repaint()
            return
        last = visible[self._end - 1] if self._end else None
        match = visible[self.match] if self.match is not None else None
        self.buffer.open_reports(False)
        self.match = None
        for index, entry in enumerate(self.buffer.visible):
            if last is not None and (entry is last or _holds(entry, last)):
                self._end = index + 1
            if entry is match:
                self.match = index
        self.repaint()

    def toggle_follow(self) -> None:
        """Freeze the pane, or follow again."""
        was = self._end
        self._passes()
        self._end = (self._end or len(self.buffer.visible)) if was is None else None
        self.repaint()

    def titles(self) -> tuple[Row, Row]:
        """What is shown, and whether it moves."""
        tr = self.tr
        shown = str(self.buffer.filter) or tr("all ranks")
        left = [
            Span(tr("log"), TextStyle.STRONG),
            Span(f" · {shown}", TextStyle.LIVE if self.buffer.filter else TextStyle.PLAIN),
        ]
        if self.search:
            left.append(
                Span(
                    f" · /{self.search}" + ("" if self.match is not None else tr(" (not found)")),
                    TextStyle.WARN,
                )
            )
        below = len(self.buffer.visible) - self._end if self._end is not None else 0
        state = (
            Span(
                tr(f"at the failure · {fm.whole(len(self.buffer.visible) - self._bottom)} below"),
                TextStyle.BAD,
            )
            if self._bottom is not None
            else Span(tr("following"), TextStyle.DIM)
            if self.following
            else Span(tr(f"frozen · {fm.whole(below)} below"), TextStyle.WARN)
        )
        total = self.buffer.total
        count = f"{fm.whole(total)} line{'s' if total != 1 else ''}"
        return tuple(left), row(Span(f"{tr(count)} · ", TextStyle.DIM), state)

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The lines in sight."""
        visible = self.buffer.visible
        self._page = height
        root = self._root_line()
        opened = (
            [line for line in self._open if self._accepts(line)] if self.following and root is None else []
        )
        opened = opened[-max(1, height // 3) :]
        room = height - len(opened)
        end = len(visible) if self._end is None else min(max(self._end, room), len(visible))
        if self.following and root is not None and root < end - room and self._passed != self._verdict:
            self._bottom = end = min(end, max(root + 1 + height // BELOW_ROOT, room))
        else:
            self._bottom = None
        start = max(end - room, 0)
        rows = [
            self._row(visible[i], width, matched=i == self.match, root=i == root) for i in range(start, end)
        ]
        rows += [self._line_row((line.who,), line.text, line.tone, width, matched=False) for line in opened]
        if not opened and all(visible[i].is_rule for i in range(start, end)):
            rows.append(row(Span(self.tr(self._nothing()), TextStyle.DIM)))
        return rows

    def _nothing(self) -> str:
        if self.buffer.total and self.buffer.filter:
            return f"no line of {fm.whole(self.buffer.total)} matches; f changes the filter, Esc clears it"
        return (
            "the ranks have not written a line yet" if self._has_sources else "no log file has appeared yet"
        )

    def _accepts(self, line: LogLine) -> bool:
        entry = Entry(line.attempt, (line.who,), line.text, line.tone, line.path, line.offset, line.stream)
        return self.buffer.filter.accepts(entry)

    def _row(self, entry: Entry, width: int, *, matched: bool, root: bool = False) -> Row:
        if entry.is_rule:
            text = f"── {self.tr(entry.text)} "
            return row(Span(text + "─" * max(0, width - len(text)), TextStyle.FRAME))
        text = entry.text
        if entry.inner:
            text = folded_text(text, self.tr(f"{fm.whole(len(entry.inner))} lines, o opens"))
        drawn = self._line_row(entry.who, text, entry.tone, width, matched=matched)
        if not root:
            return drawn
        said = [
            Span(span.text, TextStyle.ROOT if span.ink is TONES[entry.tone] else span.ink)
            for span in drawn[1:]
        ]
        return (Span(drawn[0].text[:-1], TextStyle.KEY), Span("▌", TextStyle.BAD), *said)

    def _line_row(self, who: tuple[str, ...], text: str, tone: Tone, width: int, *, matched: bool) -> Row:
        said = text[self._side : self._side + 2 * width].expandtabs(4)
        ink = TextStyle.STRONG if matched and tone is Tone.PLAIN else TONES[tone]
        head = Span(fit(who_text(who), WHO_WIDTH) + " ", TextStyle.KEY if matched else TextStyle.DIM)
        at = said.lower().find(self.search.lower()) if self.search else -1
        if at < 0:
            return (head, Span(said, ink))
        stop = at + len(self.search)
        return (head, Span(said[:at], ink), Span(said[at:stop], TextStyle.MATCH), Span(said[stop:], ink))

    def action_scroll_lines(self, lines: int) -> None:
        """Move the lines in sight; reaching the newest one follows again."""
        self._passes()
        count = len(self.buffer.visible)
        end = (count if self._end is None else self._end) + lines
        self._wants_oldest = False
        if end >= count:
            self._end = None
            self.repaint()
        else:
            self._freeze(end)
            self.repaint()

    def action_scroll_pages(self, pages: int) -> None:
        """One page up or down."""
        self.action_scroll_lines(pages * max(self._page - 1, 1))

    def action_oldest(self) -> None:
        """The first line that is kept."""
        self._wants_oldest = not self._looked_back
        self._look_back()
        if len(self.buffer.visible) > self._page:
            self._freeze(self._page)
            self.repaint()

    def action_follow(self) -> None:
        """The newest line."""
        self._passes()
        self._end, self.match = None, None
        self.repaint()

    def action_side(self, way: int) -> None:
        """Show what lies left or right."""
        self._side = max(0, self._side + way * SIDE_CELLS)
        self.repaint()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves three lines."""
        event.stop()
        self.action_scroll_lines(-WHEEL_LINES)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves three lines."""
        event.stop()
        self.action_scroll_lines(WHEEL_LINES)

    def _freeze(self, end: int) -> None:
        self._passes()
        self._look_back()
        self._end = max(min(end, len(self.buffer.visible)), min(self._page, len(self.buffer.visible)))


def root_of(visible: Sequence[Entry], cause: Cause) -> int | None:
    """Index of the line that a verdict points at: in its own file, else said alike by another rank."""
    wanted = cause.text.strip().rstrip("…")
    alike: int | None = None
    for index in range(len(visible) - 1, -1, -1):
        entry = visible[index]
        if wanted not in entry.text or not wanted:
            continue
        if entry.path == cause.path or entry.path.endswith(f"/{cause.path}"):
            return index
        alike = index if alike is None else alike
    return alike


def _holds(entry: Entry, line: Entry) -> bool:
    return any(inner is line for inner in entry.inner)


def folded_text(text: str, opens: str) -> str:
    """torchrun's own traceback in one line, with how long it is and the key that opens it."""
    return f"{text} ({opens})"


def who_text(who: tuple[str, ...]) -> str:
    """Who said a line, as short as it goes: ``0-7 ×8``."""
    if len(who) == 1:
        return f"{who[0]:>5}"
    numbers = tuple(int(name) for name in who if name.isdigit())
    return f"{fm.ranges(numbers)} ×{len(who)}".rjust(5)
