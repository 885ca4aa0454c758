"""The page of the log screen, its status line and what is asked of the session: rows, cursor, selection and words, without an app."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from textual.message import Message

from supervisor.views.logs import commands as lc
from supervisor.views.logs.file import TextLine
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import LogRef, Tone
from supervisor.views.tui.logs.controls import LogControls
from supervisor.views.tui.logs.page import LogPage
from supervisor.views.tui.logs.screen import LogStatus
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.translate import english
from tests.views.tui.still import text_of

NOTHING = Query()
LOGS = tuple(LogRef(1, who, "stdout", Path(f"/runs/a/{who}/stdout.log")) for who in ("0", "1"))


@pytest.fixture(autouse=True)
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels ask their app for the language."""
    monkeypatch.setattr(Panel, "tr", english)


def line_of(number: int, text: str = "", who: tuple[str, ...] = ("0",), tone: Tone = Tone.PLAIN) -> LogRow:
    """The line that begins at byte 10 * `number` of the first log."""
    at = 10 * number
    return LogRow((at, 0), who, text or f"line {number}", tone, ((0, TextLine(at, at + 10, text)),))


def page_of(*rows: LogRow, **values: Any) -> lc.Page:
    known: dict[str, Any] = {
        "made": 1,
        "rows": rows,
        "logs": LOGS,
        "cursor": None,
        "jump": 0,
        "following": False,
        "cause": None,
        "at_cause": False,
        "attempt": 1,
        "attempts": 1,
        "query": NOTHING,
        "searched": NOTHING,
        "merged_by": "",
        "numbers": tuple(None for _ in rows),
        "line_count": None,
        "below": None,
        "place_ratio": 0.5,
        "counted_ratio": 1.0,
        "size_bytes": 2048,
        "shown": None,
        "search": None,
        "folds": True,
        "last_lines": {},
        "empty_why": "no line yet",
    }
    return lc.Page(**(known | values))


def lines(first: int, last: int) -> tuple[LogRow, ...]:
    return tuple(line_of(number) for number in range(first, last))


def pane(page: lc.Page | None = None) -> tuple[LogPage, list[Message]]:
    """A page and what it asks for."""
    made, sent = LogPage(id="p"), list[Message]()
    made.post_message = lambda message: bool(sent.append(message)) or True  # type: ignore[method-assign, func-returns-value]
    if page is not None:
        made.take(page)
    return made, sent


def asked(sent: list[Message]) -> list[tuple[str, int]]:
    """The messages by name with their number, and none is left."""
    found = [(type(m).__name__, getattr(m, "rows", getattr(m, "way", 0))) for m in sent]
    sent.clear()
    return found


def body(made: LogPage, width: int = 30, height: int = 10) -> list[str]:
    return text_of(made.body(width, height)).splitlines()


# -- the cursor ---------------------------------------------------------------------------------------------


def test_the_cursor_stays_on_its_line_when_the_page_moves() -> None:
    made, _ = pane(page_of(*lines(10, 15)))
    assert made.ready
    made.cursor = 3
    made.take(page_of(*lines(12, 17)))
    assert made.cursor == 1, "line 13"
    made.take(page_of(*lines(13, 18)))
    assert made.cursor == 0
    made.take(page_of(*lines(20, 25)))
    assert made.cursor == 0, "it lies above the page"
    made.cursor = 2
    made.take(page_of(*lines(10, 15)))
    assert made.cursor == 4, "it lies below"
    made.take(page_of())
    assert (made.cursor, made.row, made.selection) == (0, None, None)
    made.take(page_of(*lines(0, 3)))
    assert made.cursor == 0


def test_where_a_page_puts_the_cursor() -> None:
    made, _ = pane(page_of(*lines(0, 5), following=True))
    assert made.cursor == 4, "the newest line is followed"
    made.take(page_of(*lines(0, 5), cursor=2, jump=1))
    assert made.cursor == 2, "a jump"
    made.cursor = 1
    made.take(page_of(*lines(0, 5), cursor=2, jump=1))
    assert made.cursor == 1, "the same jump once more"
    made.take(page_of(*lines(0, 5), cursor=0, jump=2))
    assert made.cursor == 0


def test_moving_within_a_page_and_beyond_it() -> None:
    made, sent = pane(page_of(*lines(0, 5)))
    made.action_move(1)
    assert (made.cursor, asked(sent)) == (1, [("Moved", 0)])
    made.action_move(3)
    assert (made.cursor, asked(sent)) == (4, [("Moved", 0)])
    made.action_move(1)
    assert (made.cursor, asked(sent)) == (4, [("Beyond", 1)])
    made.action_move(3)
    assert (made.cursor, asked(sent)) == (4, [("Beyond", 3)])
    made.action_move(-4)
    assert (made.cursor, asked(sent)) == (0, [("Moved", 0)])
    made.action_move(-2)
    assert (made.cursor, asked(sent)) == (0, [("Beyond", -2)])
    for page in (None, page_of()):
        empty, sent = pane(page)
        empty.action_move(1)
        assert asked(sent) == []


def test_a_page_that_follows_stands_still_once_the_cursor_moves_up() -> None:
    made, sent = pane(page_of(*lines(0, 5), following=True))
    made.action_move(1)
    assert (made.cursor, asked(sent)) == (4, [])
    made.action_move(-1)
    assert (made.cursor, asked(sent)) == (3, [("Frozen", 0), ("Moved", 0)])
    made.action_mark()
    assert asked(sent) == [("Frozen", 0)]


def test_a_page_up_and_down_keeps_a_row_and_the_edges_are_asked_for() -> None:
    made, sent = pane(page_of(*lines(0, 9)))
    assert made.in_sight == 1
    made.action_page(1)
    assert asked(sent) == [("Beyond", 1)], "nothing was drawn yet"
    made.body(30, 6)
    assert made.in_sight == 6
    made.action_page(1)
    made.action_page(-1)
    assert asked(sent) == [("Beyond", 5), ("Beyond", -5)]
    made.cursor = 3
    made.action_edge(1)
    assert (made.cursor, asked(sent)) == (3, [("Edge", 1)])
    made.action_edge(-1)
    assert (made.cursor, asked(sent)) == (0, [("Edge", -1)])


def test_a_selection_reaches_from_its_mark_to_the_cursor() -> None:
    rows = lines(0, 5)
    made, sent = pane(page_of(*rows))
    assert made.selection == (rows[0], rows[0])
    assert not made.clear_mark()
    made.cursor = 3
    made.action_mark()
    assert asked(sent) == []
    made.cursor = 1
    assert made.selection == (rows[3], rows[1])
    assert [line[0] for line in body(made)] == [" ", "▌", "┃", "┃", " "]
    made.action_mark()
    assert made.mark is None
    made.action_mark()
    assert made.clear_mark()
    assert made.mark is None


# -- drawing --------------------------------------------------------------------------------------------------


def test_what_stands_before_a_line() -> None:
    two = (line_of(0, "a"), line_of(1, "b", ("1",)))
    assert body(pane(page_of(*lines(0, 2)))[0]) == ["▌    0     line 0", "     0     line 1"]
    assert body(pane(page_of(*two))[0]) == ["▌    0     a", "     1     b"]
    numbered = page_of(*lines(0, 2), numbers=(7, 8), line_count=9)
    assert body(pane(numbered)[0]) == ["▌   7 line 0", "    8 line 1"], "of one log nobody is named"
    many = page_of(*lines(0, 2), numbers=(7, None), line_count=123456)
    assert body(pane(many)[0]) == ["▌     7 line 0", "        line 1"]
    mixed = page_of(*two, numbers=(7, 8), merged_by="time")
    assert body(pane(mixed)[0]) == ["▌   7     0     a", "    8     1     b"]
    unnamed = page_of(line_of(0, "a", ("",)), line_of(1, "b", ("",)))
    assert body(pane(unnamed)[0]) == ["▌a", " b"]
    followed = page_of(line_of(0, "a", ("",)), following=True)
    assert body(pane(followed)[0]) == [" a"], "no cursor while the newest lines are followed"
    short = page_of(*lines(0, 2), numbers=(7,))
    assert body(pane(short)[0])[1] == "      line 1"


def test_long_lines_are_cut_and_moved_sideways_or_wrapped() -> None:
    text = "".join(chr(ord("a") + at % 26) for at in range(60))
    made, _ = pane(page_of(line_of(0, text, ("",)), line_of(1, "short", ("",))))
    assert body(made, 21)[0][:21] == f"▌{text[:20]}"
    made.action_side(1)
    assert body(made, 21)[0][:21] == f"▌{text[16:36]}"
    made.action_side(-1)
    made.action_side(-1)
    assert body(made, 21)[0][:21] == f"▌{text[:20]}"
    made.action_side(1)
    made.toggle_wrap()
    assert made.wraps
    assert body(made, 21) == [f"▌{text[:20]}", f"┃{text[20:40]}", f"┃{text[40:]}", " short"]
    made.cursor = 1
    assert body(made, 21, 4)[-1] == "▌short"
    assert len(body(made, 21, 2)) == 2, "four fifths of two rows are one"
    assert body(made, 21, 2) == [f" {text[:20]}", "▌short"]
    made.cursor = 0
    made.action_mark()
    made.cursor = 1
    assert body(made, 21)[1][0] == "┃"
    made.toggle_wrap()
    assert body(made, 21)[0][1:21] == text[:20], "from the left again"
    numbered, _ = pane(page_of(line_of(0, text), numbers=(7,)))
    numbered.toggle_wrap()
    assert body(numbered, 26) == [f"▌   7 {text[:20]}", f"┃     {text[20:40]}", f"┃     {text[40:]}"]


@pytest.mark.parametrize(
    ("values", "left", "right"),
    [
        ({}, "log · 0/stdout.log", "frozen"),
        ({"following": True}, "log · 0/stdout.log", "following"),
        ({"following": True, "grows": False}, "log · 0/stdout.log", "at the end"),
        ({"grows": False}, "log · 0/stdout.log", ""),
        ({"attempts": 2}, "log · attempt 1 of 2 · 0/stdout.log", "frozen"),
        ({"merged_by": "time"}, "log · ranks 0-1, merged by time", "frozen"),
        ({"merged_by": "time", "logs": LOGS[:1]}, "log · rank 0, merged by time", "frozen"),
        (
            {"merged_by": "arrival", "query": Query.parse("r1 foo")},
            "log · merged by arrival · rank 1 · “foo”",
            "frozen",
        ),
        ({"merged_by": "time", "logs": ()}, "log · merged by time", "frozen"),
        ({"rows": ()}, "log", "frozen"),
        ({"rows": (), "alone": 1}, "log · 1/stdout.log", "frozen"),
    ],
)
def test_the_title_says_which_logs(values: dict[str, Any], left: str, right: str) -> None:
    page = replace(page_of(*lines(0, 2)), **values)
    titles = pane(page)[0].titles()
    assert (text_of([titles[0]]), text_of([titles[1]])) == (left, right)
    assert pane()[0].titles() == ((), ())


# -- the line below ---------------------------------------------------------------------------------------------


def status(page: lc.Page | None, here: int | None = None, width: int = 90) -> str:
    made = LogStatus(id="s")
    made.page, made.here = page, here
    assert made.ready is (page is not None)
    return " ".join(text_of(made.body(width, 1)).split())


@pytest.mark.parametrize(
    ("values", "here", "text"),
    [
        ({}, None, "50% of 2K"),
        ({"size_bytes": 1 << 20}, None, "50% of 1M"),
        ({"size_bytes": 0}, None, "empty"),
        ({"rows": ()}, 0, "2K"),
        ({"counted_ratio": 0.25}, None, "counting lines 25% · 50% of 2K"),
        ({"line_count": 2000}, 0, "line 1 500 of 2 000 (75%) · 2K"),
        ({"line_count": 2000}, 1, "50% of 2K"),
    ],
)
def test_where_the_page_stands(values: dict[str, Any], here: int | None, text: str) -> None:
    assert status(replace(page_of(line_of(0), numbers=(1500,)), **values), here) == text


@pytest.mark.parametrize(
    ("values", "here", "text"),
    [
        ({"numbers": (2, 1003, 2004), "below": 97}, 0, "line 98 of 197 kept (49%) · line 2 of the file"),
        ({"numbers": (2, 1003, 2004), "below": 0}, 2, "line 197 of 197 kept (100%) · line 2 004 of the file"),
        ({"numbers": (2, 1003, 2004), "following": True}, 1, "line 196 of 197 kept (99%) · line 1 003 of the file"),
        ({"numbers": (), "below": 10}, 0, "line 185 of 197 kept (93%)"),
        ({"numbers": (2, 3, 4), "below": None}, 0, "line 2 of 5 000 (0%) · 2K"),
    ],
)  # fmt: skip
def test_with_a_filter_line_and_per_cent_are_of_the_kept_lines(
    values: dict[str, Any], here: int, text: str
) -> None:
    page = replace(page_of(*lines(0, 3), shown=lc.Tally(197, 1.0), line_count=5000), **values)
    assert status(page, here, 120) == f"{text} 197 of 5 000 lines"


# -- what is asked of the session ---------------------------------------------------------------------------------


class Asked:
    """A session that keeps what it is asked for."""

    def __init__(self) -> None:
        self.commands: list[lc.Command] = []

    def ask(self, *commands: lc.Command) -> None:
        self.commands += commands


def controls_of(
    row: LogRow | None = None,
) -> tuple[LogControls, Asked, list[lc.Page], list[lc.Remark | None]]:
    session, shown, said = Asked(), list[lc.Page](), list[lc.Remark | None]()
    controls = LogControls(cast("Any", session), shown.append, said.append, lambda: row, lambda: None)
    return controls, session, shown, said


def test_of_two_pages_the_later_one_is_shown() -> None:
    controls, _, shown, _ = controls_of()
    pages = [page_of(made=number) for number in (2, 1, 2, 3)]
    for page in pages:
        controls.take(page)
    assert shown == [pages[0], pages[3]]


def test_follow_is_toggled_and_a_row_is_meant_only_while_it_stands_still() -> None:
    row = line_of(3)
    controls, session, _, _ = controls_of(row)
    for made, following in ((1, None), (2, True), (3, False)):
        if following is not None:
            controls.take(page_of(made=made, following=following))
        assert controls.following is (following is not False)
        assert controls.frozen_row is (None if controls.following else row)
        controls.toggle_follow()
        assert session.commands.pop() == lc.Follow(on=following is False)
    controls.match(-1)
    assert session.commands.pop() == lc.Match(row, -1, made=3)
    controls.fold(row)
    assert session.commands.pop() == lc.Fold(row)


def test_until_there_is_a_page_of_a_filter_the_title_says_what_is_done() -> None:
    controls, _, shown, _ = controls_of()

    def title() -> str:
        return text_of([pane(shown[-1])[0].titles()[0]])

    controls.take(old := page_of(*lines(0, 2)))
    controls.filter("epoch", None)
    assert title().endswith("0/stdout.log · filtering…")
    controls.progress(lc.Remark("searched", done_ratio=0.371))
    assert title().endswith("filtering… 37%")
    controls.take(there := replace(old, made=3, query=controls.query))
    assert shown[-1] == there
    controls.search("loss", None)
    assert (shown[-1].searched.typed, shown[-1].search) == ("loss", None)
    assert title().endswith("“epoch” · searching…")
    controls.take(found := replace(there, made=4, searched=controls.searched, search=lc.Tally(1, 1.0)))
    controls.progress(lc.Remark("searched", done_ratio=0.9))
    assert shown[-1] == found, "what is shown is of the newest search"


def test_ranks_and_streams_go_round() -> None:
    controls, _, _, said = controls_of()
    controls.take(page_of(made=1))
    controls.next_rank(1)
    assert said == [lc.Remark("the log does not say which rank wrote a line", good=False)]
    seen = []
    controls.take(replace(page_of(made=2), ranks=("0", "1")))
    for way in (1, 1, 1, -1, -1):
        controls.next_rank(way)
        seen.append("".join(controls.query.who))
    assert seen == ["0", "1", "", "1", "0"]
    controls.take(replace(page_of(made=3), ranks=("5",)))
    controls.next_rank(1)
    assert controls.query.who == {"5"}, "a rank that is no more counts as none"
    streams = []
    for _ in range(3):
        controls.next_stream()
        streams.append(controls.query.stream)
    assert streams == ["stdout", "stderr", ""]


def test_clearing_takes_the_search_first_then_the_filter() -> None:
    controls, session, _, _ = controls_of()
    controls.search("loss", None)
    controls.show_only(Query.parse("step"), None)
    assert controls.clear()
    assert (bool(controls.searched), bool(controls.query)) == (False, True)
    assert controls.clear()
    assert not controls.query
    assert session.commands[-1] == lc.Show(Query(), None)
    assert not controls.clear()


def tally(found: int, ordinal: int | None, done: float) -> lc.Tally:
    return lc.Tally(found, done, ordinal)


@pytest.mark.parametrize(
    ("shown", "search", "text"),
    [
        (None, tally(7, 3, 1.0), "/loss: 3 of 7"),
        (None, tally(7, None, 1.0), "/loss: 7 found"),
        (None, tally(7, 3, 0.5), "/loss: 3 of 7 (50% searched)"),
        (None, tally(0, None, 0.999), "/loss: none so far, 99% searched"),
        (None, tally(7, None, 0.5), "/loss: 7+ found (50% searched)"),
        (None, lc.Tally(0, 0.0, at_match=True), "/loss: 1+ found (0% searched)"),
        (tally(1200, None, 1.0), None, "1 200 lines"),
        (tally(12, None, 0.25), tally(7, 1, 1.0), "12 lines (25% searched) /loss: 1 of 7"),
    ],
)
def test_how_much_was_found(shown: lc.Tally | None, search: lc.Tally | None, text: str) -> None:
    page = page_of(line_of(0), searched=Query.search("loss"), shown=shown, search=search)
    assert status(page) == f"50% of 2K {text}"
