"""Rows, lines of a log and charts cell by cell: cut, padded, aligned and labelled at their bounds."""

from __future__ import annotations

import pytest

from supervisor.views.logs.query import Query
from supervisor.views.tui.pages import log_rows
from supervisor.views.tui.widgets import paint
from supervisor.views.tui.widgets.filters import harmless
from supervisor.views.tui.widgets.paint import Span, TextStyle


@pytest.mark.parametrize(
    ("text", "width", "left", "right"),
    [
        ("abc", 5, "abc  ", "  abc"),
        ("abc", 3, "abc", "abc"),
        ("abcd", 3, "ab…", "ab…"),
        ("字字", 3, "字…", "字…"),
        ("abc", 1, "…", "…"),
        ("abc", 0, "", ""),
    ],
)
def test_a_text_in_just_so_many_cells(text: str, width: int, left: str, right: str) -> None:
    assert paint.fit(text, width) == left
    assert paint.fit(text, width, right=True) == right


@pytest.mark.parametrize(
    ("text", "width", "most", "lines"),
    [
        ("one two three", 7, 3, ["one two", "three"]),
        ("one two three", 6, 3, ["one", "two", "three"]),
        ("one two three", 6, 2, ["one", "two t…"]),
        ("one two three", 13, 1, ["one two three"]),
        ("one two three", 12, 1, ["one two thr…"]),
        ("onetwothree", 5, 2, ["onet…"]),
        ("", 5, 2, []),
    ],
)
def test_text_in_lines(text: str, width: int, most: int, lines: list[str]) -> None:
    assert paint.wrap(text, width, most) == lines


def test_what_terminals_disagree_about_is_left_out() -> None:
    assert paint.plain("plain") == "plain"
    assert paint.plain("a\tb") == "a   b"
    assert paint.plain("a\x1b[31mb\x07") == r"a\x1b[31mb\x07"
    assert paint.plain("✓\ufe0f") == "✓"
    assert paint.plain("a\nb\rc") == r"a b\rc"
    assert harmless("a\x1bb") == "ab"
    assert harmless("字") == "字"


# -- lines of a log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "text"),
    [(("3",), "    3"), (("0", "1", "2"), "0-2 ×3"), (("0", "agent"), " 0 ×2"), (("agent",), "agent")],
)
def test_who_wrote_a_line(who: tuple[str, ...], text: str) -> None:
    assert log_rows.who_text(who) == text


def test_what_was_searched_and_filtered_for_stands_out() -> None:
    spans = list(
        log_rows.text_spans(
            "loss 2.0 of Loss", Query.parse("of"), Query.parse("loss"), TextStyle.DIM, TextStyle.PLAIN
        )
    )
    assert spans == [
        Span("loss", TextStyle.MATCH),
        Span(" 2.0 ", TextStyle.DIM),
        Span("of", TextStyle.LIVE),
        Span(" ", TextStyle.DIM),
        Span("Loss", TextStyle.MATCH),
    ]
    nothing = Query.parse("")
    assert list(log_rows.text_spans("", nothing, nothing, TextStyle.DIM, TextStyle.PLAIN)) == [
        Span("", TextStyle.DIM)
    ]
    bad = list(log_rows.text_spans("x", nothing, nothing, TextStyle.DIM, TextStyle.BAD))
    assert bad == [Span("x", TextStyle.BAD)], "a failure keeps its colour"
