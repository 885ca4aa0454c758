"""Rows, lines of a log and charts cell by cell: cut, padded, aligned and labelled at their bounds."""

from __future__ import annotations

import pytest

from supervisor.views.logs.query import Query
from supervisor.views.model.thinned_series import lives_on, single
from supervisor.views.tui.charts.axes import Axis
from supervisor.views.tui.charts.braille import labels
from supervisor.views.tui.charts.curves import Curve, Look, Mark, nearest, plot, readout
from supervisor.views.tui.logs import rows as log_rows
from supervisor.views.tui.widgets import paint
from supervisor.views.tui.widgets.filters import harmless
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle
from supervisor.views.wording.translate import english
from tests.views.tui.still import text_of, track


def said(row: Row) -> str:
    return text_of([row])


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


@pytest.mark.parametrize(
    ("values", "width", "bounds", "text"),
    [
        ([], 3, (), "   "),
        ([1.0], 0, (), ""),
        ([0.0, 0.5, 1.0], 3, (0.0, 1.0), "▁▄▇"),
        ([-9.0, 9.0], 2, (0.0, 1.0), "▁▇"),
        ([0.0, 1.0], 4, (0.0, 1.0), "  ▁▇"),
        ([0.0, 0.0, 1.0, 1.0], 2, (0.0, 1.0), "▁▇"),
        ([0.0, 1.0, 0.0], 2, (0.0, 1.0), "▁▄"),
        ([0.0, 0.0], 2, (), "▁▁"),
        ([100.0, 110.0], 2, (), "▂▆"),
        ([100.0, 120.0], 2, (), "▁▇"),
    ],
)
def test_a_line_of_blocks(values: list[float], width: int, bounds: tuple[float, ...], text: str) -> None:
    low, high = bounds or (None, None)
    assert paint.spark(values, width, low, high) == text
    if len(values) > width > 0:
        assert paint.spark(values, width, low, high, pick=max)[-1] == paint.spark(
            [max(values[1:])], 1, low, high
        )


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


# -- charts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([], []),
        ([0.0], ["0"]),
        ([0.5], ["0.5"]),
        ([1e6], ["1e+06"]),
        ([0.0005], ["0.0005"]),
        ([1, 10, 100], ["1", "10", "100"]),
        ([0.0, 20_000.0], ["0", "20k"]),
        ([9_000.0, 9_500.0], ["9000", "9500"]),
        ([1e6, 2e6], ["1M", "2M"]),
        ([1e9, 2e9], ["1e9", "2e9"]),
        ([0.0, 1e-4, 2e-4], ["0", "1e-4", "2e-4"]),
        ([1e-4, 1.5e-4], ["1.0e-4", "1.5e-4"]),
        ([0.001, 0.0015], ["1.0e-3", "1.5e-3"]),
        ([0.25, 0.5], ["0.2", "0.5"]),
        ([0.25, 0.26], ["0.25", "0.26"]),
        ([1.00001, 1.00002], ["1.00001", "1.00002"]),
        ([0.1104940, 0.1104942, 0.1104944], ["0.1104940", "0.1104942", "0.1104944"]),
        ([3.599e-4, 3.5992e-4, 3.5994e-4], ["3.5990e-4", "3.5992e-4", "3.5994e-4"]),
        ([3_933_200.0, 3_933_400.0], ["3.9332e6", "3.9334e6"]),
    ],
)
def test_numbers_of_an_axis(values: list[float], texts: list[str]) -> None:
    assert labels(values) == texts


WHOLE = (0.0, 100.0)


def test_the_point_nearest_to_a_place_is_the_newer_attempts() -> None:
    points = (single(0.0, 1.0, 1.0, 1), single(5.0, 1.0, 2.0, 2), single(9.0, 4.0, 3.0, 2))
    found = nearest(Look(), [points], 2.0)
    assert found is not None
    assert found.attempt == 2
    assert nearest(Look(Axis.TIME), [points], 0.0) is points[0]
    assert nearest(Look(), [], 0.0) is None
    assert [lives_on(point, {1: 1.0}) for point in points] == [False, True, True]
    assert lives_on(single(0.0, None, 1.0, 1), {1: 0.0})


def test_what_the_cursor_reads() -> None:
    points = (single(0.0, 1.0, 1.0, 1), single(5.0, 4.0, 2.0, 2))
    assert readout(Look(), [points], str, english) == ()
    newest = said(readout(Look(cursor=4.0), [points], str, english))
    assert newest.startswith("step 4  2.0  ")
    assert said(readout(Look(cursor=1.0), [points], str, english)).startswith("attempt 1  step 1  1.0")
    merged = (points[0]._replace(low=0.5, high=1.5, weight=2),)
    assert "1.0 (0.5…1.5)" in said(readout(Look(cursor=1.0), [merged], str, english))
    assert "(" not in said(
        readout(Look(cursor=1.0), [(merged[0]._replace(low=1.0, high=1.0),)], str, english)
    )


def test_a_plot_has_its_axes_marks_and_room() -> None:
    points = track(*(1.0 + 0.1 * at for at in range(50)))
    drawn = plot([Curve(points)], Look(cursor=10.0), 40, 10, marks=[Mark(25.0, 0.0, "ckpt", TextStyle.DIM)])
    assert drawn is not None
    text = text_of(drawn.rows)
    assert "ckpt" in text
    assert "┊" in text
    assert "│" in text
    assert "└" in text
    assert len(drawn.rows) == 10
    assert plot([Curve(points)], Look(), 20, 3) is not None
    assert plot([Curve(points)], Look(), 19, 3) is None
    assert plot([Curve(points)], Look(), 20, 2) is None
    assert plot([], Look(), 40, 10) is None
    low = plot([Curve(points)], Look(), 40, 7)
    assert low is not None
    assert "└" not in text_of(low.rows), "a low one has no line below"
    outside = plot([Curve(points)], Look(), 40, 10, marks=[Mark(51.0, 0.0, "late", TextStyle.DIM)])
    assert outside is not None
    assert "late" not in text_of(outside.rows)
