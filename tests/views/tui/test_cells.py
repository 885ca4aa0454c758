"""Rows, lines of a log and charts cell by cell: cut, padded, aligned and labelled at their bounds."""

from __future__ import annotations

import pytest

from supervisor.views.logs.query import Query
from supervisor.views.model.history import lives_on, single
from supervisor.views.tui.charts import curves, plotting
from supervisor.views.tui.charts.axes import Axis
from supervisor.views.tui.charts.canvas import Canvas
from supervisor.views.tui.charts.curves import Curve, Look, Mark, in_one_row, nearest, plot, readout
from supervisor.views.tui.charts.plotting import Scale, buckets, labels, log_ticks, loss_bounds, ticks
from supervisor.views.tui.logs import rows as log_rows
from supervisor.views.tui.widgets import paint
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle
from supervisor.views.tui.widgets.panel import _edge
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


def test_two_ends_need_a_cell_between_them() -> None:
    left, right = (Span("left"),), (Span("right"),)
    assert said(paint.between(left, right, 10)) == "left right"
    assert said(paint.between(left, right, 9)) == "left"
    assert said(paint.between(left, right, 3)) == "le…"
    assert said(paint.between(left, right, 12, Span("-"))) == "left---right"


def test_a_row_is_cut_where_something_is_lost() -> None:
    row = (Span("abc"), Span("def", TextStyle.DIM), Span("gh"))
    assert paint.clip(row, 8) is row
    assert [span.text for span in paint.clip(row, 7)] == ["abc", "def", "…"]
    assert [span.text for span in paint.clip(row, 6)] == ["abc", "de…"]
    assert [span.text for span in paint.clip(row, 3)] == ["ab…"]
    assert said(paint.padded(row, 10)) == "abcdefgh  "
    assert said(paint.padded(row, 5)) == "abcd…"


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
    ("ratio", "text"),
    [
        (None, "────"),
        (0.0, "────"),
        (0.5, "━━──"),
        (0.6, "━━╸─"),
        (1.0, "━━━━"),
        (9.0, "━━━━"),
        (-1.0, "────"),
    ],
)
def test_a_bar(ratio: float | None, text: str) -> None:
    assert said(paint.bar(ratio, 4, TextStyle.LIVE)) == text


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
    assert paint.harmless("a\x1bb") == "ab"
    assert paint.harmless("字") == "字"


@pytest.mark.parametrize(
    ("left", "right", "width", "text"),
    [
        ("loss", "2.1", 20, "╭ loss ─────── 2.1 ╮"),
        ("loss", "2.1", 16, "╭ loss ─── 2.1 ╮"),
        ("loss", "2.1", 15, "╭ loss ───────╮"),
        ("", "", 6, "╭────╮"),
        ("a longer title", "", 12, "╭ a long… ─╮"),
    ],
)
def test_the_top_edge_of_a_pane(left: str, right: str, width: int, text: str) -> None:
    made = _edge((Span(left),) if left else (), (Span(right),) if right else (), width, TextStyle.FRAME)
    assert paint.cells(made) == width
    assert said(made) == text


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


def test_a_part_of_a_row() -> None:
    row = (Span("abc"), Span("def", TextStyle.DIM))
    assert log_rows.cut_spans(row, 0, 6) is row
    assert said(log_rows.cut_spans(row, 0, 5)) == "abcde"
    assert said(log_rows.cut_spans(row, 2, 4)) == "cd"
    assert said(log_rows.cut_spans(row, 3, 9)) == "def"
    assert log_rows.cut_spans(row, 6, 9) == ()


# -- charts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (0, 10, 6, [0, 2, 4, 6, 8, 10]),
        (0, 10, 5, [0, 5, 10]),
        (0, 10, 2, [0, 10]),
        (0, 10, 1, [0]),
        (1, 69, 3, [20, 40, 60]),
        (0, 10, 0, [0]),
        (3, 3, 5, [3]),
        (0.1, 0.9, 4, [0.2, 0.4, 0.6, 0.8]),
        (-5, 5, 3, [-5, 0, 5]),
    ],
)
def test_round_numbers(low: float, high: float, most: int, found: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(found)


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (1, 100, 9, [1, 2, 5, 10, 20, 50, 100]),
        (1, 100, 5, [1, 3, 10, 30, 100]),
        (1, 100, 3, [1, 10, 100]),
        (1, 100, 2, [1, 100]),
        (1, 2.9, 3, [1, 2]),
        (0, 10, 3, [0, 5, 10]),
        (-1, 1, 3, [-1, 0, 1]),
    ],
)
def test_round_numbers_of_a_logarithm(low: float, high: float, most: int, found: list[float]) -> None:
    assert log_ticks(low, high, most) == pytest.approx(found)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([], []),
        ([0.0], ["0"]),
        ([0.5], ["0.5"]),
        ([1e6], ["1e+06"]),
        ([0.0005], ["0.0005"]),
        ([1, 10, 100], ["1", "10", "100"]),
        ([1e4, 1e6], ["10000", "1e+06"]),
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
        ([2e3, 1.2e5, 1.4e5], ["2000", "1.2e+05", "1.4e+05"]),
    ],
)
def test_numbers_of_an_axis(values: list[float], texts: list[str]) -> None:
    assert labels(values) == texts


def test_a_curve_without_room_for_axes_is_a_row_of_blocks() -> None:
    points = track(4.0, 3.0, 2.0, 1.0)
    assert plot([Curve(points)], Look(), 26, 1) is None
    assert text_of([in_one_row([points], Look(), 26)]) == "▇▅▃▁".rjust(26)
    assert text_of([in_one_row([points], Look(window=(1.0, 2.0)), 26)]).split() == ["▇▁"]
    for width, text in ((28, "nothing of it in this window"), (26, "nothing here"), (5, "noth…")):
        assert text_of([in_one_row([points], Look(window=(8.0, 9.0)), width)]) == text


@pytest.mark.parametrize("axis", [Axis.STEP, Axis.NUMBER])
@pytest.mark.parametrize("log", [False, True])
def test_a_young_chart_has_each_number_once(axis: Axis, log: bool) -> None:
    """Between two steps there is none: four steps over a hundred columns are four numbers."""
    points = tuple(
        single(float(at), float(at), 3.6e-4 - at * 1e-8, 1)._replace(number=at) for at in (1, 2, 3, 4)
    )
    drawn = plot([Curve(points)], Look(axis=axis, log=log), 100, 20)
    assert drawn is not None
    lines = text_of(drawn.rows).splitlines()
    assert lines[-1].split() == ["1", "2", "3", "4"]
    numbers = [line.split("┤")[0].strip() for line in lines if "┤" in line]
    assert len(numbers) > 2
    assert len(set(numbers)) == len(numbers)


def test_a_scale_maps_its_ends_and_beyond() -> None:
    up, down = Scale(0, 10, 11), Scale(0, 10, 11, flipped=True)
    assert [up.dot(v) for v in (0, 5, 10, 11, -1, 99, -99)] == [0, 5, 10, 11, -1, 15, -4]
    assert [down.dot(v) for v in (0, 5, 10)] == [10, 5, 0]
    assert Scale(3, 3, 11).dot(3) == 5
    log = Scale(1, 100, 11, log=True)
    assert [log.dot(v) for v in (1, 10, 100, 0)] == [0, 5, 10, -4]


def test_points_of_one_column_are_one_bucket() -> None:
    points = [
        single(0.0, 0.0, 1.0, 1),
        single(1.0, 0.1, 3.0, 1),
        single(2.0, 9.0, 5.0, 1),
        single(3.0, 9.0, 7.0, 2),
    ]
    found = buckets(points, [p.step or 0.0 for p in points], Scale(0, 9, 10))
    assert [(b.x, b.low, b.mean, b.high, b.attempt) for b in found] == [
        (0, 1.0, 2.0, 3.0, 1),
        (9, 5.0, 5.0, 5.0, 1),
        (9, 7.0, 7.0, 7.0, 2),
    ]
    smooth = buckets(points[:2], [p.step or 0.0 for p in points[:2]], Scale(0, 9, 10), [10.0, 20.0])
    assert [(b.low, b.mean, b.high) for b in smooth] == [(1.0, 15.0, 3.0)]
    assert buckets([], [], Scale(0, 9, 10)) == []


def test_the_bounds_of_a_loss() -> None:
    low, high = loss_bounds(track(1.0, 2.0), [])
    assert [low, high] == pytest.approx([0.96, 2.04])
    assert list(loss_bounds(track(2.0, 2.0), [])) == pytest.approx([1.9, 2.1])
    assert loss_bounds(track(0.0), []) == (-1.0, 1.0)
    assert loss_bounds(track(1.0, 2.0), [0.0, 5.0])[1] == pytest.approx(5.2)


def test_lines_and_areas_on_a_canvas() -> None:
    canvas = Canvas(2, 1)
    plotting.draw_area(
        canvas, [plotting.Bucket(0, 0, 0, 0, 1)], Scale(0, 3, 4, flipped=True), lambda _: TextStyle.LIVE
    )
    assert said(canvas.drawn()[0]) == "⡀ "
    canvas = Canvas(2, 1)
    found = [plotting.Bucket(0, 3, 3, 3, 1), plotting.Bucket(3, 3, 3, 3, 1)]
    plotting.draw_line(canvas, canvas.layer(TextStyle.LIVE), found, Scale(0, 3, 4, flipped=True))
    assert said(canvas.drawn()[0]) == "⠉⠉"
    apart = Canvas(2, 1)
    found = [plotting.Bucket(0, 3, 3, 3, 1), plotting.Bucket(3, 3, 3, 3, 2)]
    plotting.draw_line(apart, apart.layer(TextStyle.LIVE), found, Scale(0, 3, 4, flipped=True))
    assert said(apart.drawn()[0]) == "⠁⠈", "two attempts are not joined"
    band = Canvas(1, 1)
    plotting.draw_band(
        band, band.layer(TextStyle.LIVE), [plotting.Bucket(0, 0, 1, 3, 1)], Scale(0, 3, 4, flipped=True)
    )
    assert said(band.drawn()[0]) == "⡇"


def test_marks_win_over_dots_and_rules_stand_behind_them() -> None:
    canvas = Canvas(3, 1)
    canvas.rule(0, "┊", TextStyle.DIM)
    canvas.rule(1, "┊", TextStyle.DIM)
    canvas.rule(3, "┊", TextStyle.DIM)
    canvas.span(canvas.layer(TextStyle.LIVE), 2, 0, 0)
    canvas.mark(2, 0, "○", TextStyle.STRONG)
    canvas.mark(3, 0, "○", TextStyle.STRONG)
    canvas.mark(0, 1, "○", TextStyle.STRONG)
    assert said(canvas.drawn()[0]) == "┊⠁○"


WHOLE = (0.0, 100.0)


def test_a_window_is_zoomed_and_moved_within_the_whole() -> None:
    look = Look().zoomed(0.5, WHOLE)
    assert look.window == (50.0, 100.0), "about the newest end"
    assert look.zoomed(2.0, WHOLE).window is None
    assert Look(cursor=20.0).zoomed(0.5, WHOLE).window == (10.0, 60.0)
    assert look.panned(-0.5, WHOLE).window == (25.0, 75.0)
    assert look.panned(1.0, WHOLE).window == (50.0, 100.0)
    assert look.panned(-9.0, WHOLE).window == (0.0, 50.0)
    assert Look().panned(1.0, WHOLE) == Look()
    assert list(Look().zoomed(1e-9, WHOLE).window or ()) == pytest.approx(
        [100 - 100 * curves.ZOOM_LEAST, 100.0]
    )


def test_a_cursor_stays_within_and_its_window_follows() -> None:
    assert Look().pointed(-5.0, WHOLE).cursor == 0.0
    assert Look().pointed(105.0, WHOLE).cursor == 100.0
    assert Look(cursor=3.0).pointed(None, WHOLE).cursor is None
    seen = Look(window=(10.0, 20.0))
    assert seen.pointed(20.0, WHOLE).window == (10.0, 20.0)
    assert seen.pointed(50.0, WHOLE).window == (45.0, 55.0)
    assert seen.pointed(99.0, WHOLE).window == (90.0, 100.0)


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
