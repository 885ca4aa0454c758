"""The time that a line's head says, and which zone a log's stamps are of."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator

import pytest

from supervisor.text.stamps import (
    LineClock,
    Span,
    day_of_path,
    is_rising,
    local_shift,
    shift_of,
    span_of,
    stamp_of,
)


def utc(*parts: int) -> float:
    return float(calendar.timegm((*parts, 0, 0, 0)))


NOON = utc(2026, 11, 20, 12, 0, 0)
HOUR = 3600.0


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine two hours ahead of UTC."""
    monkeypatch.setenv("TZ", "EET-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "t"),
    [
        ("2026-11-20 12:00:00 INFO step", NOON), ("2026/11/20T12:00:00.250 x", NOON + 0.25),
        ("[2026-11-20 12:00:00,125] x", NOON + 0.125), ("2026-11-20T12:00:00Z x", NOON),
        ("2026-11-20T22:15:00+10:15 x", NOON), ("2026-11-20 06:30:00-0530 x", NOON),
        ("[rank0]:I1120 12:00:00.500000 123 x.py:1] y", NOON + 0.5),
        ("I20251120 12:00:00 1 root x.py:1] y", NOON - 365 * 86400), ("26-11-20 12:00:00 - x", NOON),
        ("[11/20/26 12:00:00] INFO x", NOON), ("11/20/2026 12:00:00 - INFO - x", NOON),
        ("20/11/2026 12:00:00 - INFO - x", NOON), ("05-08-26 12:00:00 x", utc(2026, 8, 5, 12, 0, 0)),
        ("34-11-20 12:00:00 x", None), ("12/11/25 12:00:00 x", utc(2025, 12, 11, 12, 0, 0)),
        ("21/11/26 12:00:00 x", NOON + 86400), ("10-11-05 12:00:00 x", utc(2010, 11, 5, 12, 0, 0)),
        ("09-11-10 12:00:00 x", utc(2010, 11, 9, 12, 0, 0)), ("26-11-21 12:00:00 x", NOON + 86400),
        ("Nov 20 12:00:00 host x", NOON), ("Fri Jan  2 12:00:00 UTC 2026 x", utc(2026, 1, 2, 12, 0, 0)),
        ('{"ts": 1795176000.5, "x": 1}', NOON + 0.5), ("12:00:05 x", NOON + 5), ("[11:59:59] x", NOON - 1),
        ("12:00:60 x", NOON + 60), ("12:00:61 x", None), ("11/20 12:00:00 - mmengine - INFO - x", NOON),
        ("[11/18 12:00:00 d2.utils.events]:  eta: 14:54:05  x", NOON - 2 * 86400),
        ("[rank1]: 12/31 12:00:00 x", utc(2025, 12, 31, 12, 0, 0)),
        ("01/20 12:00:00 x", utc(2026, 1, 20, 12, 0, 0)), ("12/20 12:00:00 x", utc(2025, 12, 20, 12, 0, 0)),
        ("00/20 12:00:05 x", NOON + 5), ("13/20 12:00:05 x", NOON + 5), ("Epoch 11/12 12:00:05 x", NOON + 5),
        ("INFO:mmseg:Iter [48950/160000] lr: 1.388e-05, eta: 14:53:34, time: 0.4", None),
        ("elapsed 00:10:00 x", None), ("step 1:2:3", None), ("2026-13-20 12:00:00 x", None),
        ("2026-11-00 12:00:00 x", None), ("2026-11-32 12:00:00 x", None), ("2026-11-20 24:00:00 x", None),
        ("2026-11-20 12:60:00 x", None), ("no clock at all", None), ("x" * 61 + " 2026-11-20 12:00:00", None),
        ("x" * 60 + " 2026-11-20 12:00:00", NOON),
    ],
)  # fmt: skip
def test_a_lines_own_time(text: str, t: float | None) -> None:
    assert stamp_of(text, NOON) == t


@pytest.mark.parametrize(
    ("text", "day_t", "t"),
    [
        ("23:59:50 x", utc(2026, 11, 20, 0, 0, 5), utc(2026, 11, 19, 23, 59, 50)),
        ("00:00:05 x", utc(2026, 11, 19, 23, 59, 50), utc(2026, 11, 20, 0, 0, 5)),
        ("I1231 23:59:50.0 x", utc(2027, 1, 1, 0, 0, 5), utc(2026, 12, 31, 23, 59, 50)),
        ("I0101 00:00:05.0 x", utc(2027, 1, 1, 0, 0, 50), utc(2027, 1, 1, 0, 0, 5)),
        ("I0101 00:00:05.0 x", utc(2026, 12, 31, 23, 0, 0), utc(2027, 1, 1, 0, 0, 5)),
        ("I1121 12:00:00.0 x", NOON, NOON + 86400),
        ("I1226 12:00:00.0 x", NOON, utc(2025, 12, 26, 12, 0, 0)),
        ("I0104 12:00:00.0 x", NOON, utc(2026, 1, 4, 12, 0, 0)),
    ],
)
def test_a_stamp_without_a_day_or_a_year_is_of_the_nearest(text: str, day_t: float, t: float) -> None:
    assert stamp_of(text, day_t) == t


@pytest.mark.parametrize(
    "hours",
    [*range(-12, 15), -9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75],
)
def test_the_zone_with_which_a_stamp_agrees_with_the_files_last_change(hours: float) -> None:
    """A stamp of a zone ahead of UTC is later than the time that it means."""
    stamp = NOON + hours * HOUR
    for late_s in (0.0, 120.0, -120.0):
        assert shift_of(stamp, NOON + late_s) == -hours * HOUR


@pytest.mark.usefixtures("in_zone")
def test_where_no_zone_agrees_it_is_this_machines_own() -> None:
    assert local_shift(NOON) == -2 * HOUR
    assert shift_of(NOON, NOON + 120.5) == -2 * HOUR, "written minutes after its last stamp"
    for hours in (-13, 1.25, 15):
        assert shift_of(NOON + hours * HOUR, NOON) == -2 * HOUR, "no zone of the world"
    assert shift_of(NOON, NOON + 40 * HOUR) == -2 * HOUR, "copied days later"


def test_nine_steps_in_ten_that_do_not_go_back_rise() -> None:
    assert is_rising([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    assert not is_rising([1, 1, 2, 3, 4, 5, 6, 7, 8, 0])


def test_when_a_log_began_and_ended() -> None:
    head = ["2026-11-20 14:00:00 begin", "plain"]
    tail = ["plain", "2026-11-20 14:30:00 end"]
    stamped = Span(NOON, NOON + HOUR / 2, is_dated=True, is_copy=False)
    assert span_of(head, tail, NOON + HOUR / 2) == stamped, "stamps two hours ahead of UTC"
    assert span_of(["plain", "plain", *head], tail, NOON + HOUR / 2) == stamped
    assert span_of(["plain", "plain", "plain", *head], tail, NOON + HOUR / 2) is None, "a save at the end"
    clocks = [f"14:{minute}:00 x" for minute in (10, 20, 20, 30)]
    assert span_of(clocks, clocks, NOON + HOUR / 2) == Span(NOON + HOUR / 6, NOON + HOUR / 2, True, False)
    assert span_of(clocks[:1], clocks, NOON + HOUR / 2) is None, "a single time of day may be anything"
    assert span_of([*clocks[:2], *["plain"] * 4], clocks, NOON + HOUR / 2) is not None
    assert span_of([*clocks[:2], *["plain"] * 5], clocks, NOON + HOUR / 2) is None, "few lines have a time"
    assert span_of(clocks[::-1], clocks, NOON + HOUR / 2) is None, "times that fall are durations"
    assert span_of(tail, head, NOON) is None, "an end before the beginning"
    assert span_of(["plain"], tail, NOON) is None
    assert span_of(head, ["plain"], NOON) is None


def test_a_copied_logs_stamps_without_a_year_are_of_the_year_that_others_name() -> None:
    lines = ["INFO:2025-11-01 01:06:35,616:jax: no TPU", "E1101 01:09:26.050426 2605436 x.cc:30] failed"]
    began = stamp_of("2025-11-01 01:09:26", 0.0)
    assert began is not None
    found = span_of(lines, lines, NOON)  # written in 2026
    assert found is not None
    assert abs(found[0] - local_shift(NOON) - began) < 1


@pytest.mark.parametrize(
    ("path", "t"),
    [
        ("/runs/20251130_090528/train.log", utc(2025, 11, 30, 12, 0, 0)),
        ("/data-2019-01-01/2025-11-30/x.log", utc(2025, 11, 30, 12, 0, 0)),
        ("/runs/2026-11-21/x.log", NOON + 86400), ("/runs/2026-11-22/x.log", None),
        ("/runs/20251301/x.log", None), ("/runs/20251200/x.log", None), ("/runs/20251232/x.log", None),
        ("/runs/120251130/x.log", None),
    ],
)  # fmt: skip
def test_a_path_may_name_the_day(path: str, t: float | None) -> None:
    assert day_of_path(path, NOON) == t


@pytest.mark.usefixtures("in_zone")
def test_a_day_that_no_stamp_names_is_a_guess_unless_the_file_was_last_changed_then() -> None:
    clocks = ["10:00:00 begin", "10:03:35 end"]
    assert span_of(clocks, clocks, NOON) == Span(
        utc(2026, 11, 20, 8, 0, 0), utc(2026, 11, 20, 8, 3, 35), is_dated=False, is_copy=True
    )
    written_t = utc(2026, 11, 20, 8, 3, 36)
    known = span_of(clocks, clocks, written_t)
    assert known is not None
    assert (known.is_dated, known.is_copy) == (True, False)
    named = span_of(clocks, clocks, NOON, "/runs/2025-11-20/x.log")
    assert named is not None
    assert (named.over_t, named.is_dated) == (utc(2025, 11, 20, 8, 3, 35), True)
    for after, is_copy in ((["a", "b", " ", "c"], True), (["a", "b", "c", "d"], False)):
        more = span_of(clocks, [*clocks, *after], NOON)
        assert more is not None
        assert more.is_copy is is_copy, "whether its last stamp is its end"


def test_a_clock_without_a_day_is_of_the_day_that_the_last_date_before_it_named() -> None:
    clock = LineClock(NOON)
    clock.enter(b"[2026-06-13 20:09:43] start\n22:54:54 a\n[2026-06-14 01:00:00] eval\n01:00:05 b\n")
    assert clock.read("22:54:54 a") == utc(2026, 6, 13, 22, 54, 54)
    assert clock.read("01:00:05 b") == utc(2026, 6, 14, 1, 0, 5)
    clock.enter(b"\xff 2026-06-20 09:00:00 resumed\n" + b"x\n" * 5000)
    clock.enter(b"09:00:01 c\n")
    for no_news in (
        b"2026-06-01 09:00:00 as on the first day",
        b"2026-99-99 00:00:00",
        b"=" * 80 + b"2026-07-01 00:00:00",
    ):
        clock.enter(no_news)
    assert clock.read("09:00:01 c") == utc(2026, 6, 20, 9, 0, 1)
    assert clock.read("20:00:00 d") == utc(2026, 6, 20, 20, 0, 0)
    assert clock.read("e") is None
    assert clock.read("07:00:00 e") == utc(2026, 6, 21, 7, 0, 0), "the next day"


def test_without_any_date_a_clock_is_of_the_day_of_the_last_change() -> None:
    clock = LineClock(NOON)
    clock.enter(b"12:00:05 x\n")
    assert clock.read("12:00:05 x") == NOON + 5
    assert clock.read("I1120 12:00:06.0 x") == NOON + 6
    assert clock.read("23:00:00 x") == NOON + 11 * HOUR
    assert clock.read("01:00:00 x") == NOON - 11 * HOUR
    assert clock.read("2026-99-20 12:00:00 x") is None
