"""A page of the logs: the dashboard's pane, or with a cursor the log screen. It shows what it is given and reads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.cells import chop_cells
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.views import format as fm
from supervisor.views.logs import reading as lc
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.query import Query, Term
from supervisor.views.logs.session import Request, Scroll
from supervisor.views.logs.sources import Tone
from supervisor.views.logs.viewport import LogViewport
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row
from supervisor.views.tui.widgets.panel import WheelPanel
from supervisor.views.wording.translate import Tr

TONES = {
    Tone.PLAIN: TextStyle.PLAIN,
    Tone.WARN: TextStyle.WARN,
    Tone.BAD: TextStyle.BAD,
}
WHO_WIDTH = 9
MOST_WHO = 20
SIDE_CELLS = 16
# A wrapped line takes at most this share of the page, so that the next one is always within reach.
MOST_WRAPPED = 0.8


class LogPanel(WheelPanel):
    """Lines of the run's files as they come; requests other lines from the reader.

    Args:
        id: Textual's own.
        has_cursor: for the log screen: a cursor, a selection and line numbers. Its status line shows the counts.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("j,down", "move(1)", "down", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d,ctrl+f", "page(1)", "page down", show=False),
        Binding("g,home", "edge(-1)", "first line", show=False),
        Binding("G,end", "edge(1)", "newest line, follow", show=False),
        Binding("left,h", "side(-1)", "left", show=False),
        Binding("right", "side(1)", "right", show=False),
        Binding("V,shift+down", "mark", "begin or end a selection", show=False),
    ]

    class Moved(Message):
        """A request for other lines."""

        def __init__(self, move: Request) -> None:
            super().__init__()
            self.move = move

    class Sized(Message):
        """The number of lines that fit has changed."""

        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

    class Pointed(Message):
        """The cursor moved to another row of the page."""

    def __init__(self, *, id: str, has_cursor: bool = False) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.page: lc.Page | None = None
        self.has_cursor = has_cursor
        self.number = None if has_cursor else 4
        self.wraps = False
        self.cursor = 0
        self.mark: LogRow | None = None
        self._height = 0
        self._side = 0
        self._jump = 0
        self._shown: list[int] = []  # the row of each visible line

    @property
    def ready(self) -> bool:
        """Whether there is a page."""
        return self.page is not None

    @property
    def row(self) -> LogRow | None:
        """The row under the cursor; without one the match, the cause, or else the last visible row."""
        page = self.page
        if page is None or not page.rows:
            return None
        number: int | None = self.cursor
        if not self.has_cursor:
            number = page.cursor if page.cursor is not None else page.cause if page.at_cause else None
        if number is None:
            number = min(len(page.rows), self._height or 1) - 1
        return page.rows[number] if number < len(page.rows) else None

    def place(self) -> lc.LogAt | None:
        """The place of the row; None while following the newest lines."""
        here = self.row
        if self.page is None or here is None or (self.page.following and not self.page.at_cause):
            return None
        return self.page.place_of(here)

    @property
    def selection(self) -> tuple[LogRow, LogRow] | None:
        """The first and last selected row; None if there is no row."""
        here = self.row
        return (self.mark or here, here) if here is not None else None

    def take(self, page: lc.Page) -> None:
        """Show another page; the cursor stays on its line if that is still visible."""
        before = self.row
        self.page = page
        last = max(len(page.rows) - 1, 0)
        if page.following:
            self.cursor = last
        elif page.cursor is not None and page.jump != self._jump:
            self.cursor = page.cursor
        else:
            self.cursor = self._found_again(before, min(self.cursor, last))
        self._jump = page.jump
        self.repaint()

    def _found_again(self, before: LogRow | None, otherwise: int) -> int:
        rows = self.page.rows if self.page is not None else ()
        if before is None or not rows:
            return otherwise
        index, line = before.parts[0]
        for number, each in enumerate(rows):
            if any(i == index and x.offset == line.offset for i, x in each.parts):
                return number
        if before.place <= rows[0].place:
            return 0
        return len(rows) - 1 if before.place > rows[-1].place else otherwise

    def on_resize(self, _event: events.Resize) -> None:
        """The number of rows that fit changed."""
        self._fit()

    def watch_framed(self) -> None:
        """The same without a frame."""
        super().watch_framed()
        self._fit()

    def _fit(self) -> None:
        height = max(self.size.height - (2 if self.framed else 0), 1)
        if height != self._height:
            self._height = height
            self.post_message(self.Sized(height))

    # -- drawing -----------------------------------------------------------------------------------------

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """A selection can be cleared."""
        return [("V", "end selection", "focused.mark")] if self.mark is not None else []

    def titles(self) -> tuple[Row, Row]:
        """What is shown, and whether it moves."""
        page, tr = self.page, self.tr
        if page is None:
            return EMPTY, EMPTY
        left = [Span(tr("log"), TextStyle.STRONG)]
        which = _what(page, tr) if self.has_cursor else tr(nodes_text(page))
        if not self.has_cursor and not page.query:
            left.append(Span(f" · {tr('all ranks')}"))
        left += [Span(f" · {which}")] if which else []
        left += [Span(f" · {page.query}", TextStyle.LIVE)] if page.query else []
        if not self.has_cursor and page.searched:
            left.append(Span(f" · {found_text(page, tr)}", TextStyle.WARN))
        count = "" if self.has_cursor or not (lines := lines_text(page)) else f"{tr(lines)} · "
        return tuple(left), row(Span(count, TextStyle.DIM), self._state(page))

    def _state(self, page: lc.Page) -> Span:
        below = fm.whole(page.below) if page.below is not None else "…"
        if page.at_cause:
            return Span(self.tr(f"at the failure · {below} below"), TextStyle.BAD)
        if page.following:
            return Span(self.tr("following" if page.grows else "at the end"), TextStyle.DIM)
        if self.has_cursor:
            return Span(self.tr("frozen") if page.grows else "", TextStyle.WARN)
        text = f"frozen · {below} below" if page.grows else f"{below} below"
        return Span(self.tr(text), TextStyle.WARN if page.grows else TextStyle.DIM)

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The visible rows, with a rule above each attempt; rows that do not fit go on the cursor's far side."""
        page = self.page
        if page is None or not page.rows:
            self._shown = []
            return [row(Span(self.tr(page.empty_why) if page is not None else "", TextStyle.DIM))]
        gutter = self._gutter(page)
        lines: list[tuple[int, Row]] = []
        attempt = page.attempt_of(page.rows[0])
        for number, each in enumerate(page.rows):
            if page.attempt_of(each) != attempt:
                attempt = page.attempt_of(each)
                text = f"── {self.tr(f'attempt {attempt}')} "
                lines.append((number, row(Span(text + "─" * max(0, width - len(text)), TextStyle.FRAME))))
            lines += [(number, drawn) for drawn in self._drawn(page, number, gutter, width, height)]
        if len(lines) > height:
            mine = [at for at, (number, _) in enumerate(lines) if number == self.cursor and self.has_cursor]
            # From the top, but with the cursor's last line visible; a following page shows its end.
            top = len(lines) - height if page.following else max(0, mine[-1] - height + 1 if mine else 0)
            lines = lines[min(top, mine[0] if mine else top) :][:height]
        self._shown = [number for number, _ in lines]
        return [drawn for _, drawn in lines]

    def _gutter(self, page: lc.Page) -> tuple[int, int]:
        """Cells for a line's number and its writer."""
        if not self.has_cursor:
            return 0, who_width(page)
        numbers = [n for n in page.numbers if n is not None]
        wide = max(4, len(str(page.line_count or max(numbers)))) if numbers else 0
        alone = len({each.who for each in page.rows}) == 1 and not page.merged_by
        return wide, 0 if alone and (page.rows[0].who == ("",) or numbers) else who_width(page)

    def _drawn(
        self, page: lc.Page, number: int, gutter: tuple[int, int], width: int, height: int
    ) -> Iterator[Row]:
        each = page.rows[number]
        is_cause = number == page.cause
        here = not page.following and number == (self.cursor if self.has_cursor else page.cursor)
        chosen = here or is_cause or self._is_selected(each)
        wide, who = gutter
        label = f"{page.numbers[number] or '':>{wide}}" if wide and number < len(page.numbers) else " " * wide
        label += (" " if wide and who else "") + (
            fit(who_text(each.who, page.nodes_of(each)), who) if who else ""
        )
        sign = "▌" if is_cause or (here and self.has_cursor) else "┃" if chosen and self.has_cursor else " "
        head = row(
            Span(label, TextStyle.KEY if chosen else TextStyle.DIM),
            Span(sign, TextStyle.BAD if is_cause else TextStyle.FOCUS),
        )
        tone = TONES[each.tone]
        text = each.text.expandtabs(4)
        style = TextStyle.STRONG if here else tone
        spans = tuple(text_spans(text, page.query, page.searched, style, tone))
        if is_cause:
            spans = tuple(Span(s.text, TextStyle.ROOT if s.style is tone else s.style) for s in spans)
        space = max(width - len(label) - 1, 1)
        if not self.wraps:
            yield (*head, *cut_spans(spans, self._side, self._side + 2 * space))
            return
        at = 0
        pieces = chop_cells(text, max(space, 8)) or [""]
        for piece in pieces[: max(1, int(MOST_WRAPPED * height))]:
            yield (
                *(head if at == 0 else row(Span(" " * (len(label) + 1)))),
                *cut_spans(spans, at, at + len(piece)),
            )
            at += len(piece)

    def _is_selected(self, each: LogRow) -> bool:
        here = self.row
        if self.mark is None or here is None:
            return False
        low, high = sorted((self.mark.place, here.place))
        return low <= each.place <= high

    # -- moving ------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's own signature
        """A selection needs a cursor."""
        return self.has_cursor or action != "mark"

    def _ask(self, move: Request) -> None:
        self.post_message(self.Moved(move))

    def action_move(self, rows: int) -> None:
        """Move the cursor, and beyond the page the lines; without a cursor, the lines. At the end, follow again."""
        page = self.page
        if page is None or not page.rows or (page.following and rows > 0 and not page.at_cause):
            return
        wanted = self.cursor + rows
        if not self.has_cursor:
            self._ask(Scroll(rows))
            return
        if page.following:
            self._ask(freeze)
        if 0 <= wanted < len(page.rows):
            self._move_to(wanted)
        else:
            self._ask(Scroll(wanted if wanted < 0 else wanted - len(page.rows) + 1))
            self.cursor = 0 if wanted < 0 else len(page.rows) - 1

    def _move_to(self, number: int) -> None:
        self.cursor = number
        self.repaint()
        self.post_message(self.Pointed())

    def action_page(self, pages: int) -> None:
        """A page up or down, one row of it kept in sight."""
        in_sight = len(set(self._shown)) or 1
        self._ask(Scroll(pages * max(in_sight - 1, 1)))

    def action_edge(self, way: int) -> None:
        """Go to the first or the newest line."""
        self.cursor = 0 if way < 0 else self.cursor
        self._ask(LogViewport.to_start if way < 0 else LogViewport.follow)

    def action_side(self, way: int) -> None:
        """Scroll left or right."""
        self._side = max(0, self._side + way * SIDE_CELLS)
        self.repaint()

    def action_mark(self) -> None:
        """Start a selection here, or clear it."""
        self.mark = None if self.mark is not None else self.row
        if self.page is not None and self.page.following:
            self._ask(freeze)
        self.repaint()

    def clear_mark(self) -> None:
        """Clear the selection."""
        self.mark = None
        self.repaint()

    def toggle_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.wraps, self._side = not self.wraps, 0
        self.repaint()

    # -- the mouse ---------------------------------------------------------------------------------------

    def wheel(self, rows: int) -> None:
        """The wheel does not move the cursor."""
        self._ask(Scroll(rows))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """A press places the cursor; a drag selects from there."""
        number = self._row_at(event.y)
        if number is None or event.button != 1:
            return
        self._ask(freeze)
        self.mark = None
        self.capture_mouse()
        self._move_to(number)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Extend the selection while the button is down."""
        number = self._row_at(event.y)
        if self.app.mouse_captured is not self or number is None or number == self.cursor:
            return
        self.mark = self.mark or self.row
        self._move_to(number)

    def on_mouse_up(self, _event: events.MouseUp) -> None:
        """The drag is over."""
        if self.app.mouse_captured is self:
            self.release_mouse()

    def _row_at(self, y: int) -> int | None:
        at = y - 1
        return self._shown[at] if self.has_cursor and 0 <= at < len(self._shown) else None


def freeze(view: LogViewport) -> None:
    """The request that new lines no longer move the page."""
    view.follow(on=False)


def _what(page: lc.Page, tr: Tr) -> str:
    """Which logs are shown, and the order of their lines."""
    chosen = page.query.nodes
    logs = [log for log in page.logs if not chosen or log.node in chosen]
    logs = [log for log in logs if page.query.is_by(log.who) or log.is_mixed]
    numbers = tuple(int(log.who) for log in logs if log.who.isdigit())
    attempt = tr(f"attempt {page.attempt} of {page.attempts}") if page.attempts > 1 else ""
    if not page.merged_by:
        named = next((each.parts[0][0] for each in page.rows), page.alone)
        which = fm.short_path(str(page.logs[named].path)) if named is not None else ""
    else:
        which = (
            f"{'rank' if len(set(numbers)) == 1 else 'ranks'} {fm.ranges(tuple(set(numbers)))}"
            if numbers and not page.query.who  # the title already names a rank filter
            else ""
        )
        merged = tr(f"merged by {page.merged_by}")
        which = f"{tr(which)}, {merged}" if which else merged
    return " · ".join(part for part in (attempt, tr(nodes_text(page)), which) if part)


# -- a row, the same in the dashboard's pane and on the log screen: its writer, its tone, its matches -------------


def who_width(page: lc.Page) -> int:
    """Cells for a line's writer; for several nodes the longest name's width, so that nothing moves."""
    if not page.nodes:
        return WHO_WIDTH
    numbers = {int(log.who) for log in page.logs if log.who.isdigit()}
    longest = who_text(tuple(map(str, sorted(numbers))) or ("0",), page.nodes)
    return min(max(len(longest), WHO_WIDTH), MOST_WHO)


def who_text(who: tuple[str, ...], nodes: tuple[int, ...] = ()) -> str:
    """The writer of a line, shortened: ``0-7 ×8``; for several nodes ``n1 r3``, ``n0-1 r0-15 ×16``."""
    if nodes:
        numbers = tuple(int(name) for name in who if name.isdigit())
        names = [*([f"r{fm.ranges(numbers)}"] if numbers else []), *(x for x in who if not x.isdigit())]
        count = max(len(who), len(nodes))
        return f"n{fm.ranges(nodes)} {','.join(names)}" + (f" ×{count}" if count > 1 else "")
    if len(who) == 1:
        return f"{who[0]:>5}"
    numbers = tuple(int(name) for name in who if name.isdigit())
    return f"{fm.ranges(numbers)} ×{len(who)}".rjust(5)


def nodes_text(page: lc.Page) -> str:
    """The nodes whose logs are read, for a run on several; the title already shows a filter by node."""
    if not page.nodes or page.query.nodes:
        return ""
    if len(page.nodes) == page.node_count:
        return f"{page.node_count} nodes"
    return f"nodes {fm.ranges(page.nodes)} of {page.node_count}"


def text_spans(
    text: str, query: Query, searched: Query, style: TextStyle, plain: TextStyle
) -> Iterator[Span]:
    """The text with search matches in `MATCH`, filter matches in `LIVE`, and plain text in `style`."""
    base = style if plain is TextStyle.PLAIN else plain
    marks = [(a, b, TextStyle.MATCH) for term in searched.include for a, b in _places(term, text)]
    marks += [(a, b, TextStyle.LIVE) for term in query.include for a, b in _places(term, text)]
    at = 0
    for start, stop, its in sorted(marks, key=lambda mark: mark[:2]):
        if start >= at:
            if start > at:
                yield Span(text[at:start], base)
            yield Span(text[start:stop], its)
            at = stop
    if at < len(text) or not text:
        yield Span(text[at:], base)


def _places(term: Term, text: str) -> Iterator[tuple[int, int]]:
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text
    at = 0
    while (found := term.find(text, lowered, at)) is not None:
        if found[1] > found[0]:
            yield found
        at = max(found[1], found[0] + 1)
        if at > len(text):
            return


def marked(spans: Row, searched: Query) -> Row:
    """The row with search matches in `MATCH`."""
    text = "".join(span.text for span in spans)
    found: list[Span] = []
    at = 0
    for start, stop in sorted(place for term in searched.include for place in _places(term, text)):
        if start >= at:
            found += [*cut_spans(spans, at, start), Span(text[start:stop], TextStyle.MATCH)]
            at = stop
    return (*found, *cut_spans(spans, at, len(text))) if found else spans


def lines_text(page: lc.Page) -> str:
    """How many lines there are and how many a filter shows, as far as counted: ``3 of 148 lines``."""
    total, shown = page.line_count, page.shown
    many = "" if total is None else f"{fm.whole(total)} line{'s' if total != 1 else ''}"
    if shown is None:
        return many
    if shown.done_ratio < 1 and not shown.found:
        return f"none so far, {fm.part(shown.done_ratio)} searched"
    going = f" ({fm.part(shown.done_ratio)} searched)" if shown.done_ratio < 1 else ""
    if shown.found == total and not page.query.reads_text:  # all lines of its ranks
        return many
    return f"{fm.whole(shown.found)} of {many}{going}" if many else f"{fm.whole(shown.found)} lines{going}"


def found_text(page: lc.Page, tr: Tr) -> str:
    """How many matches the search has, as far as counted, and which of them is in sight: ``/loss: 3 of 148``."""
    found = page.search
    if found is None:
        return ""
    going = f" ({fm.part(found.done_ratio)} searched)" if found.done_ratio < 1 else ""
    least = max(found.found, 1) if found.at_match else found.found  # the visible one may not be counted yet
    if found.ordinal:
        text = f"{fm.whole(found.ordinal)} of {fm.whole(found.found)}{going}"
    elif least:
        text = f"{fm.whole(least)}+ found{going}" if going else f"{fm.whole(least)} found"
    else:
        text = f"none so far, {fm.part(found.done_ratio)} searched" if going else "not found"
    return f"/{page.searched.typed}: {tr(text)}"


def cut_spans(spans: Row, start: int, stop: int) -> Row:
    """The characters from `start` to `stop`."""
    if not start and sum(len(span.text) for span in spans) <= stop:
        return spans
    kept: list[Span] = []
    at = 0
    for span in spans:
        low, high = max(start - at, 0), min(stop - at, len(span.text))
        if low < high:
            kept.append(Span(span.text[low:high], span.style))
        at += len(span.text)
    return tuple(kept)
