"""Numbers for people: units, fixed widths, unknown is never zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.views import format as fm


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 m 00 s"),
        (2467, "41 m 07 s"),
        (11520, "3 h 12 m"),
        (187_200, "2 d 04 h"),
    ],
)
def test_duration_has_two_units(seconds: float, text: str) -> None:
    assert fm.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (2467, "00:41:07"), (86_399, "23:59:59"), (90_061, "1d 01:01:01")]
)
def test_clock(seconds: float, text: str) -> None:
    assert fm.clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(27_200, "27.2k"), (999.6, "1e+03"), (12.5, "12.5"), (0.81, "0.81"), (3.2e6, "3.2M"), (1840, "1840")],
)
def test_short(value: float, text: str) -> None:
    assert fm.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2.9e-4, "2.9e-4"), (0.0, "0.0e0"), (1e-10, "1.0e-10"), (None, "–")]
)
def test_learning_rate(value: float | None, text: str) -> None:
    assert fm.rate(value) == text


def test_memory() -> None:
    assert fm.memory(61.2 * 2**30) == "61.2G"
    assert fm.memory(300 * 2**20) == "300M"
    assert fm.memory_pair(61.2 * 2**30, 80 * 2**30) == "61.2/80 GiB"
    assert fm.memory_pair(None, 80 * 2**30) == "–"


def test_nan_loss_is_said() -> None:
    assert fm.loss(float("nan")) == "nan"
    assert fm.loss(float("inf")) == "inf"


@pytest.mark.parametrize(
    "form", [fm.whole, fm.short, fm.loss, fm.rate, fm.percent, fm.memory, fm.seconds, fm.duration, fm.age]
)
def test_unknown_is_a_dash(form: object) -> None:
    assert callable(form)
    assert fm.DASH in form(None)


@given(st.sets(st.integers(0, 200)))
def test_ranges_name_exactly_the_numbers(numbers: set[int]) -> None:
    named: set[int] = set()
    for part in filter(None, fm.ranges(tuple(numbers)).split(",")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers


@given(st.floats(min_value=0, max_value=1e9))
def test_durations_stay_narrow(seconds: float) -> None:
    assert len(fm.duration(seconds)) <= 12
