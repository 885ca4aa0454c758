"""The page of the log screen, its status line and what is asked of the session: rows, cursor, selection and words, without an app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.message import Message

from supervisor.views.logs import reading as lc
from supervisor.views.logs.file import TextLine
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.query import Query
from supervisor.views.logs.session import Scroll
from supervisor.views.logs.sources import LogRef, Tone
from supervisor.views.tui.logs.page import LogPanel
from supervisor.views.tui.logs.screen import LogStatus
from tests.views.tui.still import text_of

NOTHING = Query()
LOGS = tuple(LogRef(1, who, "stdout", Path(f"/runs/a/{who}/stdout.log")) for who in ("0", "1"))


pytestmark = pytest.mark.usefixtures("no_app")


def line_of(number: int, text: str = "", who: tuple[str, ...] = ("0",), tone: Tone = Tone.PLAIN) -> LogRow:
    """The line that begins at byte 10 * `number` of the first log."""
    at = 10 * number
    return LogRow((at, 0), who, text or f"line {number}", tone, ((0, TextLine(at, at + 10, text)),))


def page_of(*rows: LogRow, **values: Any) -> lc.Page:
    known: dict[str, Any] = {
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
        "size_bytes": 2048,
        "shown": None,
        "search": None,
        "last_lines": {},
        "empty_why": "no line yet",
    }
    return lc.Page(**(known | values))


def lines(first: int, last: int) -> tuple[LogRow, ...]:
    return tuple(line_of(number) for number in range(first, last))


def pane(page: lc.Page | None = None) -> tuple[LogPanel, list[Message]]:
    """A page and what it asks for."""
    made, sent = LogPanel(id="p", has_cursor=True), list[Message]()
    made.post_message = lambda message: bool(sent.append(message)) or True  # type: ignore[method-assign, func-returns-value]
    if page is not None:
        made.take(page)
    return made, sent


def asked(sent: list[Message]) -> list[object]:
    """What was asked of the viewport, in order; a cursor's move is "pointed". None is left."""
    found: list[object] = [m.move if isinstance(m, LogPanel.Moved) else "pointed" for m in sent]
    sent.clear()
    return found


def body(made: LogPanel, width: int = 30, height: int = 10) -> list[str]:
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
    made.take(page_of(*lines(0, 1), jump=3))
    made.take(page_of(*lines(0, 5), cursor=3, jump=3))
    assert made.cursor == 3, "the page of a jump came first for a height that did not contain its line"


def test_moving_within_a_page_and_beyond_it() -> None:
    made, sent = pane(page_of(*lines(0, 5)))
    for rows, cursor, wanted in (
        (1, 1, "pointed"),
        (3, 4, "pointed"),
        (1, 4, Scroll(1)),
        (3, 4, Scroll(3)),
        (-4, 0, "pointed"),
        (-2, 0, Scroll(-2)),
    ):
        made.action_move(rows)
        assert (made.cursor, asked(sent)) == (cursor, [wanted])
    for page in (None, page_of()):
        empty, sent = pane(page)
        empty.action_move(1)
        assert asked(sent) == []


# -- drawing --------------------------------------------------------------------------------------------------


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
    assert body(made, 21) == [f"▌{text[:20]}", f" {text[20:40]}", f" {text[40:]}", " short"]
    made.cursor = 1
    assert body(made, 21, 4)[-1] == "▌short"
    assert len(body(made, 21, 2)) == 2, "four fifths of two rows are one"
    assert body(made, 21, 2) == [f" {text[:20]}", "▌short"]
    made.toggle_wrap()
    assert body(made, 21)[0][1:21] == text[:20], "from the left again"


@pytest.mark.parametrize(
    ("values", "left", "right"),
    [
        ({}, "log · 0/stdout.log", "frozen"),
        ({"following": True}, "log · 0/stdout.log", "following"),
        ({"following": True, "grows": False}, "log · 0/stdout.log", "at the end"),
        ({"attempts": 2}, "log · attempt 1 of 2 · 0/stdout.log", "frozen"),
        ({"merged_by": "time"}, "log · ranks 0-1, merged by time", "frozen"),
        (
            {"merged_by": "arrival", "query": Query.parse("r1 foo")},
            "log · merged by arrival · rank 1 · “foo”",
            "frozen",
        ),
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
        ({"size_bytes": 1 << 20}, None, "50% of 1M"),
        ({"size_bytes": 0}, None, "empty"),
        ({"rows": ()}, 0, "2K"),
        ({"line_count": 2000}, 0, "line 1 500 of 2 000 (75%) · 2K"),
    ],
)
def test_where_the_page_stands(values: dict[str, Any], here: int | None, text: str) -> None:
    assert status(replace(page_of(line_of(0), numbers=(1500,)), **values), here) == text


# -- what is found ----------------------------------------------------------------------------------------------


def tally(found: int, ordinal: int | None, done: float) -> lc.Tally:
    return lc.Tally(found, done, ordinal)


@pytest.mark.parametrize(
    ("shown", "search", "text"),
    [
        (None, tally(7, 3, 1.0), "/loss: 3 of 7"),
        (None, tally(7, None, 1.0), "/loss: 7 found"),
        (None, tally(0, None, 1.0), "/loss: not found"),
        (None, tally(7, None, 0.5), "/loss: 7+ found (50% searched)"),
        (None, lc.Tally(0, 0.0, at_match=True), "/loss: 1+ found (0% searched)"),
        (tally(12, None, 0.25), tally(7, 1, 1.0), "12 lines (25% searched) /loss: 1 of 7"),
    ],
)
def test_how_much_was_found(shown: lc.Tally | None, search: lc.Tally | None, text: str) -> None:
    page = page_of(line_of(0), searched=Query.search("loss"), shown=shown, search=search)
    assert status(page) == f"50% of 2K {text}"
