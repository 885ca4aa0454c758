"""Where two runs differ most: of all metrics that both have, beyond what is noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from supervisor.views.model.history import Track, single
from supervisor.views.tui.charts.axes import Axis
from supervisor.views.tui.charts.gaps import gap_between


def curve(value: Callable[[int], float], steps: range = range(0, 1000, 5)) -> Track:
    return tuple(single(float(step), float(step), value(step), 1) for step in steps)


def test_a_gap_is_found_where_the_curves_are_farthest_apart() -> None:
    mine = curve(lambda step: 4 - step / 500)
    theirs = curve(lambda step: 4 - step / 500 + (1.0 if 600 <= step < 900 else 0.0))
    found = gap_between("loss", mine, theirs, Axis.STEP)
    assert found is not None
    assert 600 < found.at < 900
    assert found.theirs - found.mine == pytest.approx(1.0, abs=0.1)
    assert 0.2 < found.ratio < 0.4


def test_noise_and_the_first_steps_are_no_gap() -> None:
    noise = random.Random(7)

    def noisy(step: int) -> float:
        return 3 - step / 1000 + noise.gauss(0, 0.2)

    mine, theirs = curve(noisy), curve(noisy)
    assert gap_between("loss", mine, theirs, Axis.STEP) is None
    warm = curve(lambda step: 30.0 if step < 20 else 1.0)
    assert gap_between("step_time_s", warm, curve(lambda _: 1.0), Axis.STEP) is None
    assert gap_between("lr", curve(lambda _: 3e-4), curve(lambda _: 3.001e-4), Axis.STEP) is None


def test_only_what_both_have_counts() -> None:
    mine, later = curve(lambda _: 1.0), curve(lambda _: 2.0, range(2000, 3000, 5))
    assert gap_between("lr", mine, later, Axis.STEP) is None
    assert gap_between("lr", mine, (), Axis.STEP) is None
    coarse = curve(lambda step: 1.0 if step < 500 else 3.0, range(0, 1000, 250))
    found = gap_between("lr", mine, coarse, Axis.STEP)
    assert found is not None
    assert (found.mine, found.theirs) == (1.0, 3.0)
    lost = curve(lambda step: math.nan if step > 100 else 1.0)
    assert gap_between("loss", lost, mine, Axis.STEP) is None


def test_the_first_steps_of_what_both_have_are_left_out_however_long_one_of_them_is() -> None:
    short = curve(lambda step: 3.0 if step > 40 else 4.0, range(80))
    long = curve(lambda _: 4.0, range(100_000)[::100])
    found = gap_between("loss", short, long, Axis.STEP)
    assert found is not None
    assert found.at > 40
