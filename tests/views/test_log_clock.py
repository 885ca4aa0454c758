"""When each line of a log was written: from its stamps, its file's growth, and what must come first."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.views.logs import clock as clocks
from supervisor.views.logs.clock import (
    LogClock,
    after_ranks,
    anchor_shift,
    at_start,
    link_clocks,
)
from supervisor.views.logs.file import LogFile
from supervisor.views.logs.sources import AGENT, LogRef
from tests.diagnosis.launcher_logs import CLOSING, FAILED, REPORT, T0, trace

Made = Callable[..., LogClock]
TEN = "".join(f"step {n:04}\n" for n in range(10))  # ten lines of ten bytes
AT_10 = "2026-11-21 10:00:{:02} INFO x{}\n"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A clock of a log that holds `text`, began at `T0` and was last written `s` seconds later."""
    files: list[LogFile] = []

    def make(text: str, s: float = 100.0, who: str = "0", *, start_t: float = T0) -> LogClock:
        path = tmp_path / who / "stdout.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (T0 + s, T0 + s))
        file = LogFile(str(path))
        files.append(file)
        file.refresh()
        return LogClock(LogRef(1, who, "stdout", path), file, start_t)

    yield make
    for file in files:
        file.close()


def keys(clock: LogClock) -> list[float]:
    """Each line's time, seconds after the start."""
    return [round(clock.key(line) - T0, 3) for line in clock._file.forward(0)]


def grow(clock: LogClock, text: str, s: float) -> None:
    path = clock._ref.path
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    os.utime(path, (T0 + s, T0 + s))
    clock._file.refresh()


def test_lines_without_a_clock_are_spread_between_the_start_and_the_last_change(made: Made) -> None:
    clock = made(TEN)
    assert keys(clock) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert not clock.is_stamped
    assert clock.newest_t == T0 + 100
    assert clock.bytes_per_s == 1.0
    assert made("").newest_t == 0.0
    assert made(TEN, start_t=0.0).bytes_per_s == 0.0, "nobody knows when it began"
    assert made(TEN, 0.1).bytes_per_s == 100.0, "a start within a second is no rate"


@pytest.mark.parametrize(
    ("s", "offset"), [(-1, 0), (0, 0), (50, 50), (55, 50), (99, 90), (100, 100), (101, 100)]
)
def test_at_a_time_a_log_without_a_clock_opens_at_the_line_that_was_begun_then(
    made: Made, s: float, offset: int
) -> None:
    assert made(TEN).offset_at(T0 + s) == offset


@pytest.mark.parametrize(
    ("s", "offset"), [(-1, 0), (0, 0), (50, 40), (55, 50), (99, 90), (100, 90), (101, 100)]
)
def test_a_small_launchers_log_opens_at_the_first_line_late_enough(
    made: Made, monkeypatch: pytest.MonkeyPatch, s: float, offset: int
) -> None:
    monkeypatch.setattr(clocks, "LAUNCHER_BYTES", len(TEN))
    assert made(TEN, who=AGENT).offset_at(T0 + s) == offset


def test_a_large_launchers_log_is_not_read_from_its_beginning(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "LAUNCHER_BYTES", len(TEN) - 1)
    clock = made(TEN + CLOSING, who=AGENT)
    monkeypatch.setattr(clock, "key", lambda _line: pytest.fail("every line's time is asked for"))
    assert clock.offset_at(T0 + 1) == 0
    assert clock.reaction_t == math.inf


def seconds(clock: LogClock) -> list[int]:
    return [math.floor(key) for key in keys(clock)]


def test_stamps_outdo_growth_and_lines_without_one_take_the_one_before(made: Made) -> None:
    lines = [AT_10.format(10, ""), "more\n", AT_10.format(20, ""), "  more\n", AT_10.format(30, "")]
    clock = made("".join(lines), 31)
    assert clock.is_stamped
    assert seconds(clock) == [10, 10, 20, 20, 30]
    starts = [sum(map(len, lines[:n])) for n in range(6)]
    for s, line in ((9, 0), (10, 0), (31, 5)):
        assert clock.offset_at(T0 + s) == starts[line], s


def test_of_a_second_that_repeats_the_first_line_is_meant(made: Made) -> None:
    lines = [AT_10.format(n // 10, "y" * (n % 7)) for n in range(300)]
    clock = made("".join(lines), 30)
    assert clock.offset_at(T0 + 12) == sum(map(len, lines[:120]))


def test_what_is_written_later_has_its_own_stamp(made: Made) -> None:
    clock = made(AT_10.format(1, "") + AT_10.format(2, ""), 2)
    assert keys(clock) == [1, 2]
    grow(clock, AT_10.format(30, "") + "more\n", 40)
    assert keys(clock) == [1, 2, 30, 30]
    assert clock.newest_t == T0 + 30


def test_what_a_quiet_log_writes_later_is_later(made: Made) -> None:
    clock = made(TEN)
    assert keys(clock)[-1] == 100
    grow(clock, "step 0010\n", 200)
    clock.grew(T0 + 190, T0 + 200)
    assert keys(clock) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200]


def test_a_line_keeps_its_time_when_the_next_one_comes(made: Made) -> None:
    clock = made("warning\n", 1.0)
    assert keys(clock) == [1]
    for n in range(2, 5):
        grow(clock, "warning\n", 25.0 * n)
        clock.grew(T0 + 25 * n - 0.1, T0 + 25 * n)
    assert keys(clock) == [1, 50, 75, 100]


def test_a_replay_knows_what_the_file_had_when(made: Made) -> None:
    clock = made(TEN)
    clock.use_recorded([50, 100], [T0 + 10, T0 + 30])
    assert keys(clock) == [10, 10, 10, 10, 10, 14, 18, 22, 26, 30]
    clock.grew(T0 + 190, T0 + 200)
    assert keys(clock)[-1] == 30, "what is recorded is not grown"


def test_a_traceback_alone_was_written_at_once_not_all_along(made: Made) -> None:
    busy, quiet = (
        made(TEN * 10, who="0"),
        made("".join(f"{x}\n" for x in trace(None, "ValueError: x")), who="1"),
    )
    link_clocks([busy, quiet], None)
    assert busy.busiest_bytes_per_s == quiet.busiest_bytes_per_s == 10.0
    assert min(keys(quiet)) == 100
    assert busy.peers == [quiet]
    assert keys(busy)[0] == 1


def test_the_traceback_that_a_stamped_log_ends_with_was_written_last(made: Made) -> None:
    said = "".join(f"{x}\n" for x in trace(None, "ValueError: x"))
    stamped = "".join(AT_10.format(n, "") for n in range(1, 9))
    assert seconds(made(stamped + said, 60))[7:] == [8, *[60] * 6]
    assert seconds(made(stamped + said + stamped, 60))[8:14] == [8] * 6, "unless the log continues after it"
    assert seconds(made(stamped + "bye\n", 60))[-1] == 8, "other last words are of the last stamp"


def test_few_whole_dates_bound_the_lines_between_them(made: Made) -> None:
    dated = "2026-11-21 10:00:50 INFO saved\n"
    clock = made(TEN[:50] + dated + TEN, 100)
    assert not clock.is_stamped
    times = keys(clock)
    assert times == sorted(times)
    assert times[5] == 50
    assert max(times[:6]) <= 50 <= min(times[6:])


def test_an_indented_line_goes_with_the_line_that_it_leads_to(made: Made) -> None:
    times = keys(made("one\n  two\n  three\nfour\nfive\n", 21))
    assert times[0] == times[1] == times[2] == times[3] < times[4]


@pytest.mark.parametrize(
    ("end_s", "written_s", "is_copy"),
    [(None, 100, False), (150, 100, False), (100, 100, False), (50, 50, True)],
)
def test_nothing_is_written_after_the_attempt_ended(
    made: Made, end_s: float | None, written_s: float, is_copy: bool
) -> None:
    clock = made(TEN)
    assert clock.newest_t == T0 + 100
    clock.ended(None if end_s is None else T0 + end_s)
    assert (clock.written_t - T0, clock.newest_t - T0, clock.is_copy) == (written_s, written_s, is_copy)
    clock.ended(T0 - 5)
    assert clock.written_t == T0, "nor before it began"


def test_of_copies_the_ranks_end_before_the_launcher_reports_it(made: Made) -> None:
    agent = made(f"{CLOSING}\n{FAILED}\n", 5000, AGENT)
    rank = made(TEN, 5000)
    link_clocks([agent, rank], T0 + 60)
    assert agent.reaction_t == T0 + 10.25
    assert agent.written_t == T0 + 60
    assert T0 + 10.2 < rank.written_t < agent.reaction_t
    assert rank.newest_t < agent.key(next(agent._file.forward(0)))


def test_a_launcher_that_says_nothing_of_ranks_has_not_reacted(made: Made) -> None:
    assert made(TEN, who=AGENT).reaction_t == math.inf
    assert made("closing signal\n", who=AGENT).reaction_t == math.inf, "a word without a time"


def test_another_file_in_its_place_is_timed_anew(made: Made) -> None:
    clock = made(AT_10.format(1, "") + AT_10.format(2, ""), 2)
    assert clock.is_stamped
    path = clock._ref.path
    path.unlink()
    path.write_text(TEN)
    os.utime(path, (T0 + 100, T0 + 100))
    clock._file.refresh()
    clock.reset()
    assert not clock.is_stamped
    assert keys(clock)[-1] == 100


@pytest.mark.parametrize(
    ("anchors", "start_s", "written_s", "shift_h"),
    [
        ([], 0, 100, None),
        ([T0], 0, 100, 0),
        ([T0 - 2, T0 + 102], 0, 100, 0),
        ([T0 - 3], 0, 100, None),
        ([T0 + 103], 0, 100, None),
        ([T0 + 50, T0 + 10], 0, 100, None),
        ([T0 + 7210, T0 + 7290], 0, 90, -2),
        ([T0 - 86400 * 3], 0, 100, None),
    ],
)  # fmt: skip
def test_few_stamps_are_believed_where_they_lie_within_the_attempt(
    anchors: list[float], start_s: float, written_s: float, shift_h: float | None
) -> None:
    found = anchor_shift(anchors, T0 + start_s, T0 + written_s)
    assert found == (None if shift_h is None else shift_h * 3600)


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["note", CLOSING, "x"], 1),
        (["note", "more", *REPORT], 2),
        (["note", "more"], 0),
        ([FAILED], 0),
    ],
)
def test_what_the_launcher_says_before_its_ranks_end_is_of_the_start(texts: list[str], first: int) -> None:
    times = [50.0 + n for n in range(len(texts))]
    assert at_start(texts, times, 10.0) == [*[10.0] * first, *times[first:]]
    assert at_start(texts, times, 0.0) == times, "nobody knows when it began"
    assert at_start(texts, times, 99.0 + len(texts))[:first] == times[:first], "no line gets later by it"


def test_the_launcher_reports_a_rank_after_that_ranks_last_line() -> None:
    ends = {"0": 30.0, "1": 20.0, None: 40.0}
    texts = ["note", FAILED, "x", *REPORT]
    times = [float(n) for n in range(len(texts))]
    after = after_ranks(texts, times, 35.0, ends.__getitem__)
    assert after[:3] == [0.0, 20.0, 20.0], "what follows is no earlier"
    assert after[3:] == [40.0] * len(REPORT), "its report stands after all that any rank wrote"
    assert after_ranks(texts, times, 90.0, ends.__getitem__)[3:] == [90.0] * len(REPORT)
    assert after_ranks(["a", "b"], [5.0, 3.0], 9.0, ends.__getitem__) == [5.0, 5.0]
