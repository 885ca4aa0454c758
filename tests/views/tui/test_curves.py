"""Curves fit their room whatever is in them; windows and cursors stay within the data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.model.thinned_series import Point, single, smooth
from supervisor.views.tui.charts.axes import Axis
from supervisor.views.tui.charts.braille import Scale, even_bounds
from supervisor.views.tui.charts.curves import Curve, Look, Mark, Plot, plot
from supervisor.views.tui.widgets.paint import TextStyle, cells

finite = st.floats(-1e12, 1e12, allow_nan=False)
points = st.lists(st.tuples(st.integers(0, 10_000), finite), min_size=2, max_size=60).map(
    lambda pairs: tuple(
        single(float(at), float(step), value, 1 + at // 20) for at, (step, value) in enumerate(pairs)
    )
)


@given(
    track=points,
    cuts=st.dictionaries(st.integers(1, 4), st.integers(0, 10_000)),
    least_span=st.floats(0, 2),
    width=st.integers(0, 120),
    height=st.integers(0, 40),
    log=st.booleans(),
    axis=st.none() | st.sampled_from(Axis),
    window=st.none() | st.tuples(st.floats(0, 9000), st.floats(1, 1000)),
    cursor=st.none() | st.floats(-100, 11_000),
)
def test_a_plot_fits(
    track: tuple[Point, ...],
    cuts: dict[int, float],
    least_span: float,
    width: int,
    height: int,
    log: bool,
    axis: Axis | None,
    window: tuple[float, float] | None,
    cursor: float | None,
) -> None:
    seen = (window[0], window[0] + window[1]) if window is not None else None
    found = plot(
        [Curve(track, cuts=cuts)], Look(axis, log, seen, cursor), width, height, least_span=least_span
    )
    if found is not None:
        assert len(found.rows) <= height
        assert all(cells(row) <= width for row in found.rows)


@given(
    factors=st.lists(st.sampled_from([0.5, 0.7, 2.0]), max_size=30),
    pans=st.lists(st.floats(-2, 2), max_size=10),
    cursor=st.none() | st.floats(-10, 200),
)
def test_a_window_stays_within_the_whole(
    factors: list[float], pans: list[float], cursor: float | None
) -> None:
    whole = (10.0, 110.0)
    look = Look().pointed(cursor, whole)
    for factor in factors:
        look = look.zoomed(factor, whole)
    for pan in pans:
        look = look.panned(pan, whole)
    if look.window is not None:
        assert whole[0] - 1e-6 <= look.window[0] < look.window[1] <= whole[1] + 1e-6
    if look.cursor is not None:
        assert whole[0] <= look.cursor <= whole[1]


@given(low=st.floats(-1e9, 1e9), width=st.floats(1e-6, 1e9), rows=st.integers(2, 60))
def test_numbers_of_a_linear_axis_stand_a_whole_number_of_rows_apart(
    low: float, width: float, rows: int
) -> None:
    start, end, numbers = even_bounds(low, low + width, rows)
    assert start <= low + 1e-9 * width + 2 * math.ulp(low)
    assert end >= low + width
    scale = Scale(start, end, 4 * rows, flipped=True)
    if abs(low) > 1e6 * width:
        return  # a float has not enough digits to say
    if (start, end) == (low, low + width):
        return  # wider bounds would waste too many rows
    apart = [scale.dot(b) - scale.dot(a) for a, b in pairwise(numbers[1:-1])]
    assert len(set(apart)) <= 1
    assert all(dots % 4 == 0 for dots in apart)


def test_what_a_later_attempt_does_again_is_faint_and_the_lineage_that_lives_is_strong() -> None:
    track = (
        *(single(step, step, 4 - step / 50, 1) for step in range(1, 101)),
        *(single(200 + step, step, 5 - step / 50, 2) for step in range(41, 61)),
    )
    drawn = plot([Curve(track, cuts={1: 41})], Look(), 60, 12)
    assert drawn is not None
    strong = {at for _, at in _columns_of(drawn, TextStyle.LOSS)}
    faint = {at for _, at in _columns_of(drawn, TextStyle.DIM)}
    middle = drawn.x.dot(41) // 2
    assert min(strong) == 0, "what the living attempt continues from is of its lineage"
    assert max(strong) <= drawn.x.dot(60) // 2
    assert min(faint) >= middle
    assert max(faint) == drawn.x.dots // 2 - 1, "what was abandoned stays in sight to its end"


def _columns_of(drawn: Plot, style: TextStyle) -> list[tuple[int, int]]:
    """Row and column of each braille cell in an ink."""
    found = []
    for number, spans in enumerate(drawn.rows):
        at = -drawn.left
        for span in spans:
            for character in span.text:
                if span.style is style and "\u2801" <= character <= "\u28ff":
                    found.append((number, at))
                at += 1
    return found


def test_first_steps_far_above_the_rest_are_clipped_with_a_mark_and_their_greatest_value() -> None:
    track = tuple(
        single(step, step, 2.0 + (40.0 if step < 3 else 0.1 * (step % 3)), 1) for step in range(200)
    )
    drawn = plot([Curve(track, smooth(track))], Look(), 80, 14)
    assert drawn is not None
    assert "▲ 42 " in "".join(span.text for span in drawn.rows[0])
    plain = plot([Curve(track[10:], smooth(track[10:]))], Look(), 80, 14)
    assert plain is not None
    assert not any("▲" in span.text for spans in plain.rows for span in spans)


def test_marks_stand_above_the_numbers_which_all_stay() -> None:
    track = tuple(single(step, step, 3.0, 1) for step in range(1001))
    marks = [Mark(500.0, 500.0, "✗ OOM", TextStyle.BAD, 1)]
    texts = []
    for shown in ((), marks):
        drawn = plot([Curve(track)], Look(), 80, 14, marks=shown)
        assert drawn is not None
        assert len(drawn.rows) == 14
        texts.append(["".join(span.text for span in spans) for spans in drawn.rows])
    assert texts[0][-1].split() == texts[1][-1].split(), "the numbers"
    assert texts[1][-2].split() == ["✗", "OOM"]


def numbers_below(low: float, high: float, width: int, marks: Sequence[Mark] = ()) -> tuple[str, str]:
    """The line of the axis and the numbers below it."""
    track = tuple(single(at, at, 3.0, 1) for at in (low, (low + high) / 2, high))
    drawn = plot([Curve(track)], Look(), width, 9, marks=marks)
    assert drawn is not None
    texts = ["".join(span.text for span in spans) for spans in drawn.rows]
    return texts[-2], texts[-1]


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(24, 200))
def test_every_tick_has_its_number(low: int, span: int, width: int) -> None:
    line, numbers = numbers_below(low, low + span, width)
    found = re.findall(r"\d+(?: \d{3})*", numbers)
    assert 1 <= len(found) == line.count("┴")
    apart = {b - a for a, b in pairwise(int(text.replace(" ", "")) for text in found)}
    assert len(apart) <= 1, "evenly spaced"


def test_raw_reaches_every_value_and_smoothing_does_not() -> None:
    """Two thousand noisy losses in some hundred dot columns: without smoothing none is averaged away."""
    track = tuple(single(step, step, 3.0 + (step * 7 % 10) / 10, 1) for step in range(2000))
    heights = []
    for look in (Look(), Look(smoothing=2)):
        drawn = plot([Curve(track, look.smoothed(track, smooth(track)))], look, 80, 14)
        assert drawn is not None
        heights.append(len({number for number, _ in _columns_of(drawn, TextStyle.LOSS)}))
    assert heights[0] <= 2
    assert heights[1] >= 10, "from the least to the greatest"
