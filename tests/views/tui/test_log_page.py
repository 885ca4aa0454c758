"""The page of the log screen, its status line and what is asked of the session: rows, cursor, selection and words, without an app."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
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


def test_a_line_is_shown_as_it_was_written_also_around_what_was_searched_for() -> None:
    """Numbers used to be padded into the columns of the rows beside them: blanks stood around a match that no log had."""
    texts = ["step 9 loss 2.5 in 7 ms", "step 1000 loss 12.25 in 107 ms"]
    rows = [line_of(number, text) for number, text in enumerate(texts)]
    for searched in (NOTHING, Query.search("loss")):
        shown = body(pane(page_of(*rows, searched=searched))[0], 60)
        assert [row[11:] for row in shown] == texts


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


def test_a_line_of_another_log_at_the_same_byte_is_another_line() -> None:
    made, _ = pane(page_of(line_of(1), line_of(2)))
    made.cursor = 1
    other = LogRow((15, 1), ("1",), "x", Tone.PLAIN, ((1, TextLine(20, 30, "x")),))
    made.take(page_of(other, line_of(2)))
    assert made.cursor == 1


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


def test_the_mouse_puts_the_cursor_and_a_drag_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lines(0, 5)
    made, sent = pane(page_of(*rows))
    made.body(30, 10)
    held: list[str] = []
    app = SimpleNamespace(mouse_captured=None, _exit=True)
    monkeypatch.setattr(LogPage, "app", app)
    monkeypatch.setattr(made, "capture_mouse", lambda: held.append("captured"))
    monkeypatch.setattr(made, "release_mouse", lambda: held.append("released"))

    def mouse(kind: str, y: int, button: int = 1) -> None:
        getattr(made, f"on_mouse_{kind}")(cast("Any", SimpleNamespace(y=y, button=button, stop=lambda: None)))

    for y, button in ((0, 1), (6, 1), (2, 3)):
        mouse("down", y, button)
    assert (asked(sent), held, made.cursor) == ([], [], 0), "the frame, below the rows, another button"
    made.mark = rows[0]
    mouse("down", 2)
    assert (asked(sent), held, made.cursor) == ([("Frozen", 0), ("Moved", 0)], ["captured"], 1)
    assert made.mark is None
    mouse("move", 4)
    mouse("up", 4)
    assert (asked(sent), held, made.cursor) == ([], ["captured"], 1), "somebody else's drag"
    app.mouse_captured = made
    mouse("move", 2)
    assert made.mark is None, "still on its row"
    mouse("move", 4)
    mouse("move", 5)
    assert made.selection == (rows[1], rows[4])
    assert asked(sent) == [("Moved", 0), ("Moved", 0)]
    mouse("up", 5)
    assert held == ["captured", "released"]
    mouse("scroll_up", 1)
    mouse("scroll_down", 1)
    assert asked(sent) == [("Beyond", -3), ("Beyond", 3)]


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


def test_without_rows_it_says_why() -> None:
    made, _ = pane()
    assert not made.ready
    assert body(made) == []
    made.take(page_of())
    assert body(made) == ["no line yet"]
    assert made.in_sight == 1


def test_the_cursor_is_in_sight_and_a_page_that_follows_shows_its_end() -> None:
    made, _ = pane(page_of(*lines(0, 9)))
    first = [line.split()[-1] for line in body(made, height=4)]
    assert first == ["0", "1", "2", "3"]
    for cursor, shown in ((3, "0123"), (4, "1234"), (8, "5678")):
        made.cursor = cursor
        assert "".join(line.split()[-1] for line in body(made, height=4)) == shown
        assert made._row_at(1) == int(shown[0])
        assert made._row_at(4) == int(shown[-1])
        assert (made._row_at(0), made._row_at(5)) == (None, None)
    made.take(page_of(*lines(0, 9), following=True))
    assert "".join(line.split()[-1] for line in body(made, height=4)) == "5678"


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
        ({"size_bytes": 1023}, None, "50% of 1023 B"),
        ({"size_bytes": 1024}, None, "50% of 1K"),
        ({"size_bytes": 1 << 20}, None, "50% of 1M"),
        ({"size_bytes": 0}, None, "empty"),
        ({"rows": ()}, 0, "2K"),
        ({"counted_ratio": 0.25}, None, "counting lines 25% · 50% of 2K"),
        ({"line_count": 2000}, 0, "line 1 500 of 2 000 (75%) · 2K"),
        ({"line_count": 2000}, 1, "50% of 2K"),
        ({"line_count": 2000}, None, "50% of 2K"),
        ({}, 0, "50% of 2K"),
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


def test_a_remark_takes_the_place_until_what_goes_on_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    timers: list[float] = []

    def timer(after_s: float, _then: object) -> object:
        timers.append(after_s)
        return SimpleNamespace(stop=lambda: stopped.append("stopped"))

    made = LogStatus(id="s")
    monkeypatch.setattr(made, "set_timer", timer)
    assert text_of(made.body(40, 1)) == ""
    for good, stays in ((None, False), (False, True), (True, True)):
        made.say(lc.Remark("copying", good=good))
        assert made.ready
        assert text_of(made.body(40, 1)).strip() == "copying"
        made.settle()
        assert (text_of(made.body(40, 1)).strip() == "copying") is stays
    assert (timers, stopped) == ([8.0] * 3, ["stopped"] * 2)
    made.say(None)
    assert not made.ready
    assert len(stopped) == 3


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


def test_a_search_is_asked_for_once_and_a_bad_one_is_said() -> None:
    controls, session, _, said = controls_of()
    assert [controls.search("loss", None) for _ in range(2)] == ["", ""]
    assert session.commands == [lc.Find(Query.search("loss"), None)]
    assert "missing )" in controls.search("/(/", None)
    assert len(session.commands) == 1
    assert not said


def test_the_title_names_what_is_filtered_and_searched_before_there_is_a_page_of_it() -> None:
    controls, _, shown, _ = controls_of()
    old = page_of(*lines(0, 2), query=Query.parse("step"), shown=lc.Tally(7, 1.0))
    controls.query = old.query

    def title() -> str:
        return text_of([pane(shown[-1])[0].titles()[0]])

    controls.take(old)
    assert title().endswith("“step”")
    controls.filter("epoch", None)
    assert title().endswith("“epoch” · filtering…")
    assert shown[-1].shown is None, "how many lines the filter before kept is old"
    controls.progress(lc.Remark("none so far", done_ratio=0.371))
    assert title().endswith("“epoch” · filtering… 37%")
    controls.take(replace(old, made=2))
    assert title().endswith("“epoch” · filtering…"), "a page of the filter before"
    there = replace(old, made=3, query=controls.query)
    controls.take(there)
    assert shown[-1] == there
    controls.search("loss", None)
    assert (shown[-1].searched.typed, shown[-1].search) == ("loss", None)
    controls.progress(lc.Remark("none so far", done_ratio=0.5))
    assert title().endswith("“epoch” · searching… 50%")
    controls.take(found := replace(there, made=4, searched=controls.searched, search=lc.Tally(1, 1.0)))
    assert shown[-1] == found
    number = len(shown)
    controls.progress(lc.Remark("1 so far", done_ratio=0.9))
    assert len(shown) == number, "what is shown is of the newest search"


def test_under_a_new_filter_only_rows_that_it_keeps_are_shown_before_its_own_page() -> None:
    controls, _, shown, _ = controls_of()
    rows = tuple(line_of(number, f"line {number}") for number in range(12))
    controls.take(replace(page_of(*rows, numbers=tuple(range(12))), cursor=10, cause=2))
    assert len(shown[-1].rows) == 12
    controls.filter(f'"{rows[1].text}"', None)  # "line 1", which begins "line 10" and "line 11" too
    assert shown[-1].rows == (rows[1], rows[10], rows[11])
    assert (shown[-1].numbers, shown[-1].cursor, shown[-1].cause) == ((1, 10, 11), 1, None)
    controls.filter("level:warn", None)
    assert not shown[-1].rows
    assert shown[-1].empty_why == "filtering…"
    controls.progress(lc.Remark("none so far", done_ratio=0.14))
    assert not shown[-1].rows
    assert shown[-1].empty_why == "filtering… 14%"
    controls.filter("", None)
    assert shown[-1].rows == rows, "what is seen of all lines stays"


def test_a_rank_that_a_log_of_several_is_not_seen_to_have_is_answered_before_the_scan() -> None:
    controls, session, shown, _ = controls_of()
    log = LogRef(1, "", "stdout", Path("/runs/a/train.log"))
    controls.take(page_of(*lines(0, 3), logs=(log,), ranks=("0", "1", "10")))
    assert controls.filter("r7", None) == ""
    assert session.commands[-1] == lc.Show(controls.query, None), "it may stand in the midst of the log"
    why = "no rank 7 seen, but ranks 0-1,10; looking through all of it…"
    assert (shown[-1].rows, shown[-1].empty_why) == ((), why)
    controls.progress(lc.Remark("none so far", done_ratio=0.5))
    assert (shown[-1].empty_why, shown[-1].doing) == (why, "filtering… 50%")
    assert controls.filter("r1,7", None) == ""
    assert shown[-1].empty_why == "filtering…"
    assert controls.filter("r2", None) == ""
    assert shown[-1].empty_why.startswith("no rank 2 seen")
    controls.take(page_of(*lines(0, 3), made=2, logs=(log,), query=controls.query))
    assert controls.filter("r3", None) == ""
    assert shown[-1].empty_why.startswith("the log does not say which rank wrote a line")


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


def test_folding_is_offered_where_there_is_something_folded() -> None:
    controls, _, _, _ = controls_of()
    assert not controls.can_fold
    for made, tone, folds, can in (
        (1, Tone.PLAIN, True, False),
        (2, Tone.FOLDED, True, True),
        (3, Tone.PLAIN, False, True),
    ):
        controls.take(page_of(line_of(0, "x", tone=tone), made=made, folds=folds))
        assert controls.can_fold is can


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
