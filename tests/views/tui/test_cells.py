"""Rows, lines of a log and charts cell by cell: cut, padded, aligned and labelled at their bounds."""

from __future__ import annotations

import pytest

from supervisor.views.logs.query import Query
from supervisor.views.tui.charts.hues import (
    Gauge,
    band_style,
    run_letter,
    run_style,
    series_style,
    value_style,
)
from supervisor.views.tui.pages import log_rows
from supervisor.views.tui.widgets import paint
from supervisor.views.tui.widgets.filters import ascii_of, harmless
from supervisor.views.tui.widgets.paint import Span, TextStyle, row
from supervisor.views.tui.widgets.panel import framed_rows
from tests.views.tui.still import text_of


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


@pytest.mark.parametrize(
    ("left", "right", "width", "edge"),
    [
        ("left", "right", 18, "╭ left ─── right ╮"),
        ("left", "right", 17, "╭ left ─────────╮"),
        ("a long left title", "", 16, "╭ a long lef… ─╮"),
        ("", "r", 10, "╭───── r ╮"),
        ("", "", 6, "╭────╮"),
    ],
)
def test_a_frame_bears_its_titles_where_they_fit(left: str, right: str, width: int, edge: str) -> None:
    over, beside = (row(title) if title else () for title in (left, right))
    framed = framed_rows([row("x")], over, beside, width, TextStyle.FRAME)
    assert text_of(framed).splitlines() == [edge, f"│x{' ' * (width - 3)}│", f"╰{'─' * (width - 2)}╯"]


def test_each_glyph_has_a_sign_of_ascii() -> None:
    glyphs = "─╌┄┈━═╍┅┉╸╺╾╼│┃║┆┇┊┋▏▎▍▌▐╭╮╰╯┌┐└┘├┤┬┴┼┿╂╋┏┓┗┛┣┫┳┻╔╗╚╝●◆■▰○◇□▱✗×✕✘✓✔∞⚠→▸▶⏵›»←◂◀‹«↑▲△↓▼▽↻↺‖·•…–—−“”‘’°▁▂▃▄▅▆▇█▉▊▋▀▔▕"
    signs = '----=========||||||||||||++++++++++++++++++++++++++++****ooooxxxxvvi!>>>>>><<<<<^^^vvv@@=..~---""\'\' _.:-=+*####""|'
    assert ascii_of(glyphs) == signs
    assert ascii_of("⠁⠸⡀⣀⠿⠀") == "':..: ", "dots by their height"
    assert ascii_of("1 → 2, a→b, 字é") == "1 ->2, a>b, ???"


# -- hues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gauge", "ratios"),
    [
        (Gauge.GPU, (0.71, 0.7, 0.31, 0.3)),
        (Gauge.CPU, (0.89, 0.9, 0.97, 0.98)),
        (Gauge.MEMORY, (0.84, 0.85, 0.94, 0.95)),
    ],
)
def test_where_amber_and_red_begin(gauge: Gauge, ratios: tuple[float, ...]) -> None:
    assert [value_style(gauge, ratio) for ratio in ratios] == [
        TextStyle.LIVE,
        TextStyle.WARN,
        TextStyle.WARN,
        TextStyle.BAD,
    ]
    assert value_style(gauge, None) is TextStyle.DIM


def test_a_series_and_a_run_keep_their_hue() -> None:
    hues = [TextStyle.PACE, TextStyle.THIRD, TextStyle.FOURTH, TextStyle.FIFTH, TextStyle.SIXTH]
    assert [run_style(at) for at in range(12)] == [TextStyle.LOSS, *hues, *hues, TextStyle.PACE]
    assert [run_letter(at) for at in (0, 25, 26)] == ["a", "z", "a"]
    assert {series_style(name) for name in ("val_loss", "perplexity", "val_ppl")} == {TextStyle.LOSS}
    assert {series_style(name) for name in ("tokens_per_sec", "epoch_time_s", "mfu")} == {TextStyle.PACE}
    assert series_style("lr") is TextStyle.PLAIN
    assert (band_style("loss"), band_style("lr")) == (TextStyle.BAND, TextStyle.FRAME)


# -- lines of a log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "text"),
    [(("3",), "    3"), (("0", "1", "2"), "0-2 ×3"), (("0", "agent"), " 0 ×2"), (("agent",), "agent")],
)
def test_who_wrote_a_line(who: tuple[str, ...], text: str) -> None:
    assert log_rows.who_text(who) == text


@pytest.mark.parametrize(
    ("who", "nodes", "text"),
    [
        (("3",), (1,), "n1 r3"),
        (("0", "1"), (0, 1), "n0-1 r0-1 ×2"),
        (("0",), (0, 1, 2), "n0-2 r0 ×3"),
        (("agent", "0"), (1,), "n1 r0,agent ×2"),
        (("agent",), (1,), "n1 agent"),
    ],
)
def test_who_wrote_a_line_on_which_node(who: tuple[str, ...], nodes: tuple[int, ...], text: str) -> None:
    assert log_rows.who_text(who, nodes) == text


def test_matches_stand_out_whatever_style_they_had() -> None:
    spans = (Span("loss 2", TextStyle.DIM), Span(".0 loss", TextStyle.BAD))
    marked = log_rows.marked(spans, Query.search("loss"))
    loss = Span("loss", TextStyle.MATCH)
    assert marked == (loss, Span(" 2", TextStyle.DIM), Span(".0 ", TextStyle.BAD), loss)
    assert log_rows.marked(spans, Query.search("2.0")) == (
        Span("loss ", TextStyle.DIM),
        Span("2.0", TextStyle.MATCH),
        Span(" loss", TextStyle.BAD),
    )
    assert log_rows.marked(spans, Query.search("gone")) is spans
    folded = (Span("İ loss", TextStyle.DIM),)
    assert log_rows.marked(folded, Query.search("loss"))[-1] == loss, "a letter that grows when lowered"
    assert log_rows.marked(spans, Query.search("/x*/")) is spans, "an empty match is none"


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
