"""The log shown alone and what it asks of the session: rows, cursor, selection and titles, without an app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.views.logs import reading as lc
from supervisor.views.logs.file import TextLine
from supervisor.views.logs.merge import Row as LogRow
from supervisor.views.logs.query import Query
from supervisor.views.logs.session import Request, Scroll
from supervisor.views.logs.sources import LogRef, Tone
from supervisor.views.tui.pages.log_pane import LogPanel
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
        "nodes": (),
        "node_count": 0,
        "ranks": (),
        "alone": None,
        "grows": True,
    }
    return lc.Page(**(known | values))


def lines(first: int, last: int) -> tuple[LogRow, ...]:
    return tuple(line_of(number) for number in range(first, last))


def pane(page: lc.Page | None = None) -> tuple[LogPanel, list[Request]]:
    """A page and what it asks for."""
    made, sent = LogPanel(id="p"), list[Request]()
    made.is_whole = True
    made.ask = sent.append  # type: ignore[method-assign, assignment]
    made.post_message = lambda _message: True  # type: ignore[method-assign, assignment]
    if page is not None:
        made.take(page)
    return made, sent


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
        (1, 1, []),
        (3, 4, []),
        (1, 4, [Scroll(1)]),
        (3, 4, [Scroll(3)]),
        (-4, 0, []),
        (-2, 0, [Scroll(-2)]),
    ):
        made.action_move(rows)
        assert (made.cursor, sent) == (cursor, wanted)
        sent.clear()
    for page in (None, page_of()):
        empty, sent = pane(page)
        empty.action_move(1)
        assert sent == []


# -- drawing --------------------------------------------------------------------------------------------------


def test_long_lines_are_cut_or_wrapped() -> None:
    text = "".join(chr(ord("a") + at % 26) for at in range(60))
    made, _ = pane(page_of(line_of(0, text, ("",)), line_of(1, "short", ("",))))
    assert body(made, 21)[0][:21] == f"▌{text[:20]}"
    made.action_wrap()
    assert made.wraps
    assert body(made, 21) == [f"▌{text[:20]}", f" {text[20:40]}", f" {text[40:]}", " short"]
    made.cursor = 1
    assert body(made, 21, 4)[-1] == "▌short"
    assert len(body(made, 21, 2)) == 2, "four fifths of two rows are one"
    assert body(made, 21, 2) == [f" {text[:20]}", "▌short"]
    made.action_wrap()
    assert body(made, 21)[0][1:21] == text[:20]


def tally(found: int, ordinal: int | None, done: float) -> lc.Tally:
    return lc.Tally(found, done, ordinal)


FOUND = {"searched": Query.search("loss")}


@pytest.mark.parametrize(
    ("values", "left", "right"),
    [
        ({}, "log · 0/stdout.log", "50% of 2K · frozen · … below"),
        ({"following": True}, "log · 0/stdout.log", "50% of 2K · following"),
        ({"following": True, "grows": False}, "log · 0/stdout.log", "50% of 2K · at the end"),
        ({"attempts": 2, "below": 3}, "log · attempt 1 of 2 · 0/stdout.log", "50% of 2K · frozen · 3 below"),
        ({"merged_by": "time", "grows": False, "below": 3}, "log · ranks 0-1, merged by time",
            "50% of 2K · 3 below"),
        ({"merged_by": "arrival", "query": Query.parse("r1 foo"), "following": True},
            "log · merged by arrival · rank 1 · “foo”", "50% of 2K · following"),
        ({"rows": (), "following": True}, "log", "2K · following"),
        ({"rows": (), "alone": 1, "following": True}, "log · 1/stdout.log", "2K · following"),
        ({"size_bytes": 1 << 20, "following": True}, "log · 0/stdout.log", "50% of 1M · following"),
        ({"size_bytes": 0, "following": True}, "log · 0/stdout.log", "empty · following"),
        ({"line_count": 2000, "numbers": (1499, 1500), "following": True}, "log · 0/stdout.log",
            "line 1 500 of 2 000 · following"),
        (FOUND | {"search": tally(7, 3, 1.0)}, "log · 0/stdout.log · /loss: 3 of 7", None),
        (FOUND | {"search": tally(7, None, 1.0)}, "log · 0/stdout.log · /loss: 7 found", None),
        (FOUND | {"search": tally(0, None, 1.0)}, "log · 0/stdout.log · /loss: not found", None),
        (FOUND | {"search": tally(7, None, 0.5)}, "log · 0/stdout.log · /loss: 7+ found (50% searched)", None),
        (FOUND | {"search": lc.Tally(0, 0.0, at_match=True)},
            "log · 0/stdout.log · /loss: 1+ found (0% searched)", None),
        (FOUND | {"search": tally(0, None, 0.5)}, "log · 0/stdout.log · /loss: none so far, 50% searched",
            None),
        ({"shown": tally(12, None, 0.25), "following": True}, "log · 0/stdout.log",
            "50% of 2K · 12 lines (25% searched) · following"),
        ({"shown": tally(0, None, 0.25), "following": True}, "log · 0/stdout.log",
            "50% of 2K · none so far, 25% searched · following"),
        ({"shown": tally(1, None, 1.0), "line_count": 1, "following": True}, "log · 0/stdout.log",
            "50% of 2K · 1 line · following"),
        ({"shown": tally(3, None, 1.0), "line_count": 1500, "following": True}, "log · 0/stdout.log",
            "50% of 2K · 3 of 1 500 lines · following"),
        ({"nodes": (0, 2), "node_count": 3}, "log · nodes 0,2 of 3 · 0/stdout.log", None),
        ({"nodes": (0, 1), "node_count": 2}, "log · 2 nodes · 0/stdout.log", None),
    ],
)  # fmt: skip
def test_the_title_says_which_logs_and_where_the_page_stands(
    values: dict[str, Any], left: str, right: str | None
) -> None:
    page = replace(page_of(*lines(0, 2)), **values)
    titles = pane(page)[0].titles()
    assert text_of([titles[0]]) == left
    assert right is None or text_of([titles[1]]) == right
    assert pane()[0].titles() == ((), ())
