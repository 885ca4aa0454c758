"""What a view remembers: bounded, and no spike lost."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.model.thinned_series import Recent, Whole, lives_on, single, smooth

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400)


@given(values, st.integers(4, 64))
def test_whole_is_bounded_and_keeps_extremes(found: list[float], cap: int) -> None:
    whole = Whole(cap)
    for number, value in enumerate(found):
        whole.add(single(float(number), float(number), value, 1))
    view = whole.view()
    assert len(view) <= cap
    assert min(p.low for p in view) == min(found)
    assert max(p.high for p in view) == max(found)
    assert sum(p.weight for p in view) == len(found)
    assert math.isclose(sum(p.mean * p.weight for p in view), sum(found), rel_tol=1e-6, abs_tol=1e-3)
    assert view[-1].t == len(found) - 1


def test_the_whole_range_stays_evenly_spread_however_many_samples_come() -> None:
    whole = Whole(256)
    for step in range(100_000):
        whole.add(single(float(step), float(step), 10.0 if not step else 1.0 / (1 + step), 1))
    view = whole.view()
    assert view[0] == single(0.0, 0.0, 10.0, 1), "the axis begins where the training does"
    gaps = [after.t - before.t for before, after in pairwise(view)]
    assert max(gaps) <= 100_000 / 64, "no point stands for a large part of the range"
    assert max(p.high for p in view[1:]) == 0.5, "the first value spreads over no other point"
    assert gaps[-64:] == [1.0] * 64, "the newest are as they came"


@given(st.lists(st.integers(1, 3), min_size=1, max_size=300))
def test_attempts_never_merge(attempts: list[int]) -> None:
    whole = Whole(512)
    for number, attempt in enumerate(sorted(attempts)):
        whole.add(single(float(number), None, float(attempt), attempt))
    assert all(p.low == p.high == p.attempt for p in whole.view())


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=120))
def test_smooth_weighs_each_value_by_its_distance(found: list[float]) -> None:
    points = [single(i, i, value, 1) for i, value in enumerate(found)]
    keep = 1 - 2 / (max(3.0, len(found) / 30) + 1)
    for at, value in enumerate(smooth(points)):
        weights = [keep ** abs(at - other) for other in range(len(found))]
        mean = sum(w * v for w, v in zip(weights, found, strict=True)) / sum(weights)
        assert value == pytest.approx(mean, abs=1e-6)


def test_what_is_not_finite_is_left_out() -> None:
    recent, whole = Recent(2), Whole(9)
    for number, value in enumerate((1.0, math.nan, math.inf, 2.0, 3.0)):
        recent.add(single(number, number, value, 1))
        whole.add(single(number, number, value, 1))
    assert [point.mean for point in recent.view()] == [2.0, 3.0]
    assert [point.mean for point in whole.view()] == [1.0, 2.0, 3.0]
    assert whole.view() is whole.view()


def test_a_step_that_a_later_attempt_repeats_is_dead() -> None:
    cuts = {1: 5.0}
    found = [
        lives_on(single(0.0, step, 1.0, attempt), cuts)
        for step, attempt in ((4, 1), (5, 1), (None, 1), (9, 2))
    ]
    assert found == [True, False, True, True]


def test_smooth_begins_anew_with_each_attempt() -> None:
    points = [single(i, i, 10.0, 1) for i in range(50)] + [single(i, i, 1.0, 2) for i in range(50)]
    assert smooth(points)[50] == 1.0
