"""Numbers for people: units, fixed widths, unknown is never zero."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.run.records import FailureClass
from supervisor.views import format as fm
from tests.keeper.fakes import verdict_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"), (45, "45 s"), (600, "10 m"), (90, "1 m 30 s"), (3600, "1 h"), (5400, "1 h 30 m"),
        (86400, "1 d"),
    ],
)  # fmt: skip
def test_a_round_span_has_no_more_units_than_it_needs(seconds: float, text: str) -> None:
    assert fm.span(seconds) == text


@given(st.sets(st.integers(0, 200)))
def test_ranges_name_exactly_the_numbers(numbers: set[int]) -> None:
    named: set[int] = set()
    for part in filter(None, fm.ranges(tuple(numbers)).split(",")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers


@pytest.mark.parametrize(
    "say", [fm.whole, fm.short, fm.loss, fm.rate, fm.memory, fm.seconds, fm.duration, fm.age]
)
def test_what_is_unknown_is_a_dash(say: Callable[[float | None], str]) -> None:
    assert say(None) == fm.DASH
    assert fm.about(say)(None) == fm.DASH
    if say is not fm.loss:
        assert say(math.nan) == say(math.inf) == fm.DASH


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (fm.whole(1840), "1 840"), (fm.whole(-1_234_567.4), "-1 234 567"), (fm.short(0.12345), "0.123"),
        (fm.short(999.4), "999"), (fm.short(-999.5), "-1000"), (fm.short(1000), "1000"),
        (fm.short(9999), "9999"), (fm.short(10_000), "10.0k"), (fm.short(999_949), "999.9k"),
        (fm.short(1e6), "1.0M"), (fm.short(1e9), "1.0G"), (fm.short(-1e12), "-1.0T"),
        (fm.loss(999.9), "999.9"), (fm.loss(1000), "1.00e+03"), (fm.loss(100), "100.0"),
        (fm.loss(99.99), "99.990"), (fm.loss(0.001), "0.001"), (fm.loss(0.00099), "9.90e-04"),
        (fm.loss(0), "0.000"), (fm.loss(math.nan), "nan"), (fm.loss(-math.inf), "-inf"),
        (fm.rate(2.94e-4), "2.9e-4"), (fm.rate(12), "1.2e1"), (fm.part(0.29), "29%"),
        (fm.part(0.9999), "99%"), (fm.part(1), "100%"), (fm.percent(0.974), "97 %"),
        (fm.percent(math.nan), "– %"), (fm.percent(0.974, digits=1), "97.4 %"), (fm.percent(None), "– %"),
        (fm.memory(2**30), "1.0G"), (fm.memory(2**30 - 1), "1024M"), (fm.memory(99 * 2**30), "99.0G"),
        (fm.memory(100 * 2**30), "100G"), (fm.memory_pair(61.2 * 2**30, 80 * 2**30), "61.2/80 GiB"),
        (fm.memory_pair(2**30, None), "1.0 GiB"), (fm.memory_pair(None, 2**30), "–"),
        (fm.seconds(0.999), "999 ms"), (fm.seconds(1), "1.00 s"), (fm.seconds(10), "10.0 s"),
        (fm.about(fm.seconds)(0.105), "~105 ms"), (fm.seconds(9.99), "9.99 s"), (fm.duration(59.9), "59 s"),
        (fm.duration(60), "1 m 00 s"), (fm.duration(3599), "59 m 59 s"), (fm.duration(3600), "1 h 00 m"),
        (fm.duration(86_399), "23 h 59 m"), (fm.duration(86_400), "1 d 00 h"),
        (fm.duration(187_200), "2 d 04 h"), (fm.duration(-5), "0 s"), (fm.clock(None), "--:--:--"),
        (fm.clock(math.inf), "--:--:--"), (fm.clock(-5), "00:00:00"), (fm.clock(86_399), "23:59:59"),
        (fm.clock(180_122), "2d 02:02:02"), (fm.clock(86_400), "1d 00:00:00"), (fm.age(-5), "0 s"),
        (fm.age(59), "59 s"), (fm.age(60), "1 m"), (fm.age(3600), "1 h"), (fm.age(7200), "2 h"),
        (fm.age(86_399), "23 h"), (fm.age(86_400), "1 d"), (fm.age(172_800), "2 d"),
        (fm.time_of_day(None), "–"),
        (fm.time_of_day(time.mktime((2026, 11, 23, 4, 5, 6, 0, 0, -1))), "04:05:06"),
        (fm.date_and_time(time.mktime((2026, 11, 23, 4, 5, 6, 0, 0, -1))), "2026-11-23 04:05:06"),
        (fm.ranges(()), ""), (fm.ranges((7, 0, 1, 2)), "0-2,7"), (fm.ranges((4,)), "4"),
        (fm.short_path("/a/b/c/"), "b/c"), (fm.short_path("c"), "c"),
        (fm.short_id("20261121-1412-brave-otter"), "brave-otter"),
        (fm.short_id("my-own-name"), "my-own-name"), (fm.short_id("20261121-own-name"), "20261121-own-name"),
        (fm.short_id("my-1412-name"), "my-1412-name"), (fm.short_id("20261121-1412"), "20261121-1412"),
    ],
)  # fmt: skip
def test_numbers_at_the_borders_of_their_units(text: str, wanted: str) -> None:
    assert text == wanted


def test_a_path_below_this_folder_or_the_home_folder_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fm.near_path(str(tmp_path / "here/a/b")) == "./a/b"
    assert fm.near_path(str(tmp_path / "a")) == "~/a"
    assert fm.near_path(f"{tmp_path}/hereabouts") == "~/hereabouts"
    assert fm.near_path("/etc/x") == "/etc/x"


def test_a_time_to_come_names_its_day_where_that_is_not_today() -> None:
    noon = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))
    assert fm.day_and_time(noon + 60, noon) == "12:01"
    assert fm.day_and_time(noon + 12 * 3600, noon) == "tomorrow 00:00"
    assert fm.day_and_time(noon + 36 * 3600 - 1, noon) == "tomorrow 23:59"
    assert fm.day_and_time(noon + 36 * 3600, noon) == "2026-11-25 00:00"


def test_how_sure_a_verdict_is_is_not_said_of_a_plain_error() -> None:
    assert fm.sure(verdict_of(FailureClass.CUDA_OOM)) == "100 % sure"
    plain = verdict_of(FailureClass.CODE_ERROR)
    assert fm.sure(replace(plain, confidence=0.8)) == ""
    assert fm.sure(replace(plain, confidence=0.79)) == "79 % sure"
