"""Curves fit their room whatever is in them; windows and cursors stay within the data; an axis counts what the log says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.model.thinned_series import Point, single, smooth
from supervisor.views.tui.charts.braille import labels
from supervisor.views.tui.charts.curves import (
    ZOOM_LEAST,
    Axis,
    Curve,
    Look,
    Plot,
    axes_of,
    axis_for,
    nearest,
    plot,
    positions,
    readout,
)
from supervisor.views.tui.widgets.paint import TextStyle, cells
from tests.views.tui.still import text_of

finite = st.floats(-1e12, 1e12, allow_nan=False)
points = st.lists(st.tuples(st.integers(0, 10_000), finite), min_size=2, max_size=60).map(
    lambda pairs: tuple(
        single(float(at), float(step), value, 1 + at // 20) for at, (step, value) in enumerate(pairs)
    )
)


@given(
    track=points,
    cuts=st.dictionaries(st.integers(1, 4), st.integers(0, 10_000)),
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
    width: int,
    height: int,
    log: bool,
    axis: Axis | None,
    window: tuple[float, float] | None,
    cursor: float | None,
) -> None:
    seen = (window[0], window[0] + window[1]) if window is not None else None
    found = plot([Curve(track, cuts=cuts)], Look(axis, log, seen, cursor), width, height)
    if found is not None:
        assert len(found.rows) <= height
        assert all(cells(row) <= width for row in found.rows)


@given(
    factors=st.lists(st.sampled_from([0.5, 0.7, 2.0]), max_size=30),
    cursor=st.none() | st.floats(-10, 200),
)
def test_a_window_stays_within_the_whole(factors: list[float], cursor: float | None) -> None:
    whole = (10.0, 110.0)
    look = Look().pointed(cursor, whole) if cursor is not None else Look()
    for factor in factors:
        look = look.zoomed(factor, whole)
    look = look.pointed(20.0, whole)
    if look.window is not None:
        assert whole[0] - 1e-6 <= look.window[0] < look.window[1] <= whole[1] + 1e-6
    if look.cursor is not None:
        assert whole[0] <= look.cursor <= whole[1]


@pytest.mark.parametrize(
    ("window", "cursor", "factor", "found"),
    [
        (None, None, 0.5, (5.0, 10.0)),
        (None, 4.0, 0.5, (2.0, 7.0)),
        ((4.0, 8.0), 5.0, 0.5, (4.5, 6.5)),
        ((4.0, 8.0), 5.0, 2.0, (2.0, 10.0)),
        ((5.0, 10.0), None, 2.0, None),
        ((4.0, 8.0), None, 1e-9, (8 - 10 * ZOOM_LEAST, 8.0)),
    ],
)
def test_a_zoom_keeps_the_cursor_where_it_is(
    window: tuple[float, float] | None,
    cursor: float | None,
    factor: float,
    found: tuple[float, float] | None,
) -> None:
    zoomed = Look(window=window, cursor=cursor).zoomed(factor, (0.0, 10.0)).window
    assert zoomed == (pytest.approx(found) if found is not None else None)


def test_a_window_follows_the_cursor() -> None:
    look = Look(window=(2.0, 4.0))
    for at, window in ((2.0, (2.0, 4.0)), (4.0, (2.0, 4.0)), (6.0, (5.0, 7.0)), (99.0, (8.0, 10.0))):
        assert look.pointed(at, (0.0, 10.0)) == Look(window=window, cursor=min(at, 10.0))


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


def test_first_steps_far_above_the_rest_are_clipped_with_a_mark() -> None:
    track = tuple(
        single(step, step, 2.0 + (40.0 if step < 3 else 0.1 * (step % 3)), 1) for step in range(200)
    )
    drawn = plot([Curve(track, smooth(track))], Look(), 80, 14)
    assert drawn is not None
    assert "▲" in text_of(drawn.rows[:1])
    plain = plot([Curve(track[10:], smooth(track[10:]))], Look(), 80, 14)
    assert plain is not None
    assert "▲" not in text_of(plain.rows)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([], []),
        ([0.5], ["0.5"]),
        ([1, 10, 100], ["1", "10", "100"]),
        ([0.0, 20_000.0], ["0", "20k"]),
        ([1e6, 2e6], ["1M", "2M"]),
        ([1e9, 2e9], ["1e9", "2e9"]),
        ([0.0, 1e-4, 2e-4], ["0", "1e-4", "2e-4"]),
        ([0.001, 0.0015], ["1.0e-3", "1.5e-3"]),
        ([1.00001, 1.00002], ["1.00001", "1.00002"]),
        ([3_933_200.0, 3_933_400.0], ["3.9332e6", "3.9334e6"]),
    ],
)
def test_numbers_of_an_axis_are_told_apart(values: list[float], texts: list[str]) -> None:
    assert labels(values) == texts


# -- axes --------------------------------------------------------------------------------------------

READ_T = 1_790_000_000.0
"""When all of it was read, within a moment."""


def late(
    number: int, *, step: float | None = None, epoch: float | None = None, line_t: float | None = None
) -> Point:
    """A loss out of a log that was read after it was written."""
    point = single(READ_T + number / 1000, step, 2.0 + number % 3, 1)
    return point._replace(epoch=epoch, number=number, late=True, line_t=line_t)


LIVE = tuple(single(READ_T + n, None, 2.0, 1)._replace(number=n) for n in range(1, 50))


@pytest.mark.parametrize(
    ("track", "axis", "first"),
    [
        ((), Axis.STEP, []),
        (tuple(late(n) for n in range(1, 101)), Axis.NUMBER, [1, 2, 3]),
        (tuple(late(n, step=n * 10, epoch=n / 10) for n in range(1, 50)), Axis.STEP, [10, 20, 30]),
        (tuple(late(n, epoch=n / 10, line_t=60.0 * n) for n in range(1, 50)), Axis.EPOCH, [0.1, 0.2, 0.3]),
        (tuple(late(n, line_t=5000.0 + 60 * n) for n in range(1, 50)), Axis.TIME, [5060, 5120, 5180]),
        # A counter that starts again with each epoch would draw each over the one before.
        (tuple(late(n, step=n % 10, epoch=1 + n // 10) for n in range(100)), Axis.EPOCH, [1, 1.1, 1.2]),
        (tuple(late(n, step=n % 10) for n in range(100)), Axis.NUMBER, [0, 1, 2]),
        (tuple(late(n, step=n - 3 * (n % 7 == 0)) for n in range(1, 100)), Axis.STEP, [1, 2, 3]),
        # A few without a step stand where the ones before them do; half of them are too many.
        (tuple(late(n, step=None if n == 2 else n) for n in range(1, 21)), Axis.STEP, [1, 1, 3]),
        (tuple(late(n, step=None if n % 2 else n) for n in range(1, 21)), Axis.NUMBER, [1, 2, 3]),
        (LIVE, Axis.TIME, [READ_T + 1, READ_T + 2, READ_T + 3]),
        ((*(late(n) for n in range(1, 3)), *LIVE), Axis.NUMBER, [1, 2, 1]),
        # A log that was poured into a pipe.
        (tuple(p._replace(t=READ_T + p.number / 1000) for p in LIVE), Axis.NUMBER, [1, 2, 3]),
    ],
)
def test_the_axis_is_the_best_that_the_log_has(
    track: tuple[Point, ...], axis: Axis, first: list[float]
) -> None:
    assert axis_for(None, [track]) is axis
    assert positions(track, axis)[:3] == first
    assert Axis.NUMBER in axes_of([track]) or not track
    if track:
        assert axis_for(Axis.NUMBER, [track]) is Axis.NUMBER, "what is asked for"


def test_whole_epochs_are_spread_and_the_last_like_the_one_before() -> None:
    epochs = tuple(late(n, epoch=float(1 + n // 4)) for n in range(6))
    assert positions(epochs, Axis.EPOCH) == [1, 1.25, 1.5, 1.75, 2, 2.25]


def test_what_the_cursor_reads() -> None:
    points = (single(0.0, 1.0, 1.0, 1), single(1.0, 1.0, 3.0, 2), single(5.0, 4.0, 2.0, 2))
    assert nearest(Look(), [points], 1.5) is points[1], "the newer attempt's"
    assert nearest(Look(Axis.TIME), [points], 0.0) is points[0]
    assert nearest(Look(), [], 0.0) is None
    assert readout(Look(), [points], str) == ()
    assert text_of([readout(Look(cursor=4.0), [points], str)]).startswith("step 4  2.0  ")
    assert text_of([readout(Look(cursor=1.0), [points[:1], points[2:]], str)]).startswith("step 1  1.0")
    two = (points[0], points[2])
    assert text_of([readout(Look(cursor=1.0), [two], str)]).startswith("attempt 1  step 1  1.0")
    assert readout(Look(cursor=1.0), [()], str) == ()
    unstepped = (late(1), late(2, epoch=1.5), points[0]._replace(step=None))
    for at, text in ((0, "reading 1  3.0"), (1, "epoch 1.5  4.0"), (2, "1.0  00:00:00")):
        shown = text_of([readout(Look(Axis.NUMBER, cursor=1.0), [unstepped[at : at + 1]], str)])
        assert shown.startswith(text)
    lost = (single(9.0, 2.0, math.nan, 2),)
    assert text_of([readout(Look(cursor=2.0), [points], str, lost=lost)]).startswith("step 2  nan")
    merged = (points[0]._replace(low=0.5, high=1.5, weight=2),)
    assert "1.0 (0.5…1.5)" in text_of([readout(Look(cursor=1.0), [merged], str)])
    assert text_of([readout(Look(cursor=1.0), [merged], str, room=6)]) == "1.0"
