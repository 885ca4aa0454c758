"""The log views' reading: lines by place and number, searched and merged, against plain references."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.text.decode import clean
from supervisor.views import logfile, logmerge, logscan
from supervisor.views.logalign import aligned
from supervisor.views.logfile import Change, LogFile
from supervisor.views.logindex import CHUNK_BYTES, Counts
from supervisor.views.logjump import BadJumpError, parse_jump
from supervisor.views.logmatch import BadQueryError, Query
from supervisor.views.logmerge import Stream, rows_before, rows_from
from supervisor.views.logs import LogRef
from supervisor.views.logscan import Task
from supervisor.views.logtime import GrowthClock, stamp_of
from supervisor.views.logwishes import ToLine, ToTime

PIECES = st.sampled_from(
    [
        b"error",
        b"Warn",
        b" ",
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"\x1b[31m",
        b"\xff",
        "é宽🙂İ".encode(),
        b"x" * 70,
        b"step 12",
    ]
)
DATA = st.lists(PIECES, max_size=60).map(b"".join)
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def reference(data: bytes) -> list[tuple[int, str]]:
    """Every line's offset and text."""
    found, at = [], 0
    for raw in data.split(b"\n")[: None if not data.endswith(b"\n") else -1]:
        found.append((at, clean(raw)))
        at += len(raw) + 1
    return found if data else []


def opened(path: Path, data: bytes, *, counted: bool = False) -> LogFile:
    path.write_bytes(data)
    file = LogFile(str(path))
    file.refresh()
    if counted:
        count(file)
    return file


def count(file: LogFile) -> None:
    while (file.newlines.chunks + 1) * CHUNK_BYTES <= file.size:
        file.newlines.append(file.read(file.newlines.chunks * CHUNK_BYTES, CHUNK_BYTES).count(b"\n"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boundaries everywhere: what is cut at 32 KiB otherwise is cut at some bytes."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 37)
    monkeypatch.setattr(logfile, "MIN_STRIDE_BYTES", 5)


@QUIET
@given(data=DATA, start=st.integers(0, 2000))
def test_lines_both_ways(tmp_path: Path, small: None, data: bytes, start: int) -> None:
    file = opened(tmp_path / "log", data)
    try:
        lines = reference(data)
        start = min(start, len(data))
        assert [(x.offset, x.text) for x in file.forward(start)] == [x for x in lines if x[0] >= start]
        assert [(x.offset, x.text) for x in file.backward(start)] == [x for x in lines if x[0] < start][::-1]
        for number, (offset, _) in enumerate(lines):
            assert file.offset_of(number) == offset
            assert file.number_at(offset) == number
        assert file.line_count == len(lines)
    finally:
        file.close()


@QUIET
@given(
    data=DATA,
    typed=st.sampled_from(
        ["error", "warn", "-error", "error warn", "/e.*1/", "/^step/", "/E|İ/", "é宽", "31m", "level:warn"]
    ),
)
def test_matches_are_those_of_each_line(data: bytes, typed: str) -> None:
    query = Query.parse(typed)
    wanted = [offset for offset, text in reference(data) if query.says(text)]
    assert list(query.matches(data)) == wanted


def test_line_numbers_beyond_the_first_chunk(tmp_path: Path) -> None:
    data = b"".join(b"line %d\n" % n for n in range(200_000))
    file = opened(tmp_path / "log", data, counted=True)
    for number in (0, 1, 77_777, 150_000, 199_999):
        offset = file.offset_of(number)
        assert offset is not None
        assert next(file.forward(offset)).text == f"line {number}"
        assert file.number_at(offset) == number
    assert file.offset_of(200_000) is None
    assert file.line_count == 200_000
    file.close()


def test_line_of_many_megabytes_is_cut_for_the_eye(tmp_path: Path) -> None:
    data = b"first\n" + b"y" * (5 << 20) + b"\nthird\n" + b"10%\r" * 300_000 + b"99%\r"
    for counted in (False, True):
        file = opened(tmp_path / "log", data, counted=counted)
        lines = list(file.forward(0))
        assert [line.text[:5] for line in lines] == ["first", "yyyyy", "third", "99%"]
        assert len(lines[1].text) < 20_000
        assert lines[1].text.endswith("[cut]")
        assert [line.offset for line in file.backward(file.size)] == [line.offset for line in lines][::-1]
        file.close()


def test_growth_truncation_rotation_and_removal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = opened(path, b"one\nhal")
    assert [line.text for line in file.forward(0)] == ["one", "hal"]
    with path.open("ab") as out:
        out.write(b"f\nthree\n")
    assert file.refresh() is Change.GROWN
    assert [line.text for line in file.forward(0)] == ["one", "half", "three"]
    path.write_bytes(b"anew\n")
    assert file.refresh() is Change.ANEW
    assert [line.text for line in file.forward(0)] == ["anew"]
    path.write_bytes(b"as long, but another\n")
    assert file.refresh() is Change.ANEW, "rewritten with more in it"
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"rotated\n")
    assert file.refresh() is Change.ANEW
    assert [line.text for line in file.forward(0)] == ["rotated"]
    path.unlink()
    assert file.refresh() is Change.GONE
    assert [line.text for line in file.forward(0)] == ["rotated"], "what is open is still shown"
    path.write_bytes(b"back\n")
    assert file.refresh() is Change.ANEW
    assert [line.text for line in file.forward(0)] == ["back"]
    file.close()


def test_file_that_comes_late(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"))
    assert file.refresh() is Change.SAME
    assert list(file.forward(0)) == []
    (tmp_path / "log").write_bytes(b"here\n")
    assert file.refresh() is Change.GROWN
    assert [line.text for line in file.forward(0)] == ["here"]
    os.remove(tmp_path / "log")
    file.close()


def test_pipe_in_the_place_of_a_log_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    file = LogFile(str(tmp_path / "log"))
    file.refresh()
    assert not file.is_open
    assert file.trouble == "not a regular file"


@given(counts=st.lists(st.integers(0, 3), max_size=30), chunk=st.integers(0, 35))
def test_counts_find_what_is_where(counts: list[int], chunk: int) -> None:
    index = Counts()
    for number in counts:
        index.append(number)
    assert index.total == sum(counts)
    owners = [place for place, number in enumerate(counts) for _ in range(number)]
    assert [index.chunk_of(n) for n in range(len(owners))] == owners
    assert index.chunk_of(len(owners)) is None
    full = [place for place, number in enumerate(counts) if number]
    assert index.next_full(chunk) == next((f for f in full if f >= chunk), max(chunk, len(counts)))
    if chunk < len(counts):
        assert index.previous_full(chunk) == max((f for f in full if f <= chunk), default=-1)


def test_query_reads_what_people_type() -> None:
    query = Query.parse('r0-2,5 ERROR -warn /Out of \\d+/ "two words" -"not this" level:warn ragent')
    assert query.who == {"0", "1", "2", "5", "agent"}
    assert [term.text for term in query.include] == ["error", "Out of \\d+", "two words"]
    assert [term.text for term in query.exclude] == ["warn", "not this"]
    assert query.says("Error: Out of 12 two words")
    assert not query.says("Error: out of 12 two words"), "a capital in an expression asks for that case"
    assert not query.says("Error: Out of 12 two words warn")
    assert Query.parse("/usr/lib").include[0].text == "/usr/lib", "a path is no expression"
    assert Query.parse("r0").is_by("0", "1")
    assert not Query.parse("r0").is_by("1")
    assert not Query.parse("  ")
    for bad in ("/(/", "level:loud"):
        with pytest.raises(BadQueryError):
            Query.parse(bad)


def test_search_is_one_text_or_one_expression() -> None:
    assert Query.search("two words").says("TWO WORDS here")
    assert not Query.search("two words").says("two other words")
    assert Query.search("/w.rds$/").says("two words")
    assert Query.search("r0").says("r0 said"), "no rank"


# -- many logs as one -------------------------------------------------------------------------------------


def never() -> None:
    """Nobody interrupts a test."""


def stream(
    path: Path, data: bytes, who: str, *, start_t: float = 1000.0, written_t: float = 2000.0
) -> Stream:
    path.write_bytes(data)
    os.utime(path, (written_t, written_t))
    file = LogFile(str(path))
    file.refresh()
    return Stream(LogRef(1, who, "stdout", path), file, start_t, never)


LOGS = st.lists(
    st.lists(
        st.sampled_from(["step 1", "step 2", "step 3", "", "  indented", "Traceback", "x" * 30]), max_size=25
    ),
    min_size=1,
    max_size=4,
)


@QUIET
@given(logs=LOGS, most=st.integers(1, 12))
def test_merged_pages_lose_nothing_and_keep_each_logs_order(
    tmp_path: Path, small: None, logs: list[list[str]], most: int
) -> None:
    streams = [
        stream(tmp_path / f"{n}.log", "".join(f"{line}\n" for line in lines).encode(), str(n))
        for n, lines in enumerate(logs)
    ]
    try:
        start, end = (0,) * len(logs), tuple(s.file.size for s in streams)
        rows = list(rows_from(streams, start))
        for n, lines in enumerate(logs):
            mine = [line.text for row in rows for i, line in row.parts if i == n]
            assert mine == lines, "every line once, in its log's order"
        for row in rows:
            assert len(row.who) == len(row.parts), "who says it is who said it"
        # Page after page up from the end: again every line once.
        place, pages = end, []
        while page := rows_before(streams, place, most):
            assert len(page) <= most
            pages.append(page)
            place = page[0].place
        upward = [row for page in reversed(pages) for row in page]
        for n, lines in enumerate(logs):
            assert [line.text for row in upward for i, line in row.parts if i == n] == lines
    finally:
        for each in streams:
            each.file.close()


def test_equal_lines_fold_though_one_rank_says_more(tmp_path: Path) -> None:
    plain = "".join(f"step {n} loss 2.{n}\n" for n in range(50))
    odd = plain.replace("step 20 ", "UserWarning: slow\nstep 20 ")
    streams = [stream(tmp_path / str(n), (odd if n == 2 else plain).encode(), str(n)) for n in range(4)]
    rows = list(rows_from(streams, (0,) * 4))
    assert [row.who for row in rows if row.text.startswith("step")] == [("0", "1", "2", "3")] * 50
    assert [row.who for row in rows if row.text.startswith("User")] == [("2",)]
    for each in streams:
        each.file.close()


def test_stamped_logs_are_merged_by_their_stamps_whatever_their_sizes(tmp_path: Path) -> None:
    zero = "".join(f"2026-11-21 10:00:{n:02d},500 INFO zero {n}\n" for n in range(0, 60, 2)).encode()
    one = "".join(f"2026-11-21 10:00:{n:02d},500 INFO one {n} {'x' * n}\n" for n in range(1, 60, 2)).encode()
    streams = [stream(tmp_path / "0", zero, "0"), stream(tmp_path / "1", one, "1")]
    rows = list(rows_from(streams, (0, 0)))
    assert [int(row.text.split()[4]) for row in rows] == list(range(60))
    t = streams[0].key(rows[0].parts[0][1])
    place = tuple(s.offset_at(t + 30) for s in streams)
    assert next(iter(rows_from(streams, place))).text.split()[3:5] == ["zero", "30"]
    for each in streams:
        each.file.close()


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    gaps=st.lists(st.floats(0.01, 100), min_size=40, max_size=40),
)
def test_growth_gives_times_that_rise_and_lead_back(sizes: list[int], gaps: list[float]) -> None:
    clock = GrowthClock(0.0, 100, 50.0)
    size, t = 100, 50.0
    for more, gap in zip(sizes, gaps, strict=False):
        size, t = size + more, t + gap
        clock.grew(size, t - gap / 2, t)
    times = [clock.time_of(at) for at in range(0, size + 1, max(size // 50, 1))]
    assert times == sorted(times)
    assert clock.time_of(size) == pytest.approx(t)
    assert clock.offset_of(0.0) == 0
    assert clock.offset_of(t) == size


@pytest.mark.parametrize(
    ("text", "t"),
    [
        ("2026-11-21 10:00:01,250 INFO x", 1795255201.25),
        ("[2026-11-21T10:00:01Z] x", 1795255201.0),
        ("2026-11-21T12:00:01+02:00 x", 1795255201.0),
        ("I1121 10:00:01.5 train.py:1] x", 1795255201.5),
        ("[10:00:01] x", 1795255201.0),
        ("step 5 | loss 2.3 | 10:99:01", None),
        ("ratio 3:4", None),
        ("x" * 100 + "2026-11-21 10:00:01", None),
    ],
)
def test_stamps(text: str, t: float | None) -> None:
    assert stamp_of(text, 1795270320.0) == t


def test_numbers_stand_in_columns() -> None:
    lines = ["step    9 | loss 2.31 | 7 ms", "step   10 | loss 12.3 | 107 ms", "other", "other"]
    assert aligned(lines) == [
        "step    9 | loss 2.31 |   7 ms",
        "step   10 | loss 12.3 | 107 ms",
        "other",
        "other",
    ]
    assert aligned(["a 1", "b 22"]) == ["a 1", "b 22"], "another shape"


# -- counting ---------------------------------------------------------------------------------------------


@QUIET
@given(
    data=DATA,
    cuts=st.lists(st.integers(0, 3000), max_size=3),
    typed=st.sampled_from(["error", "/warn|x/", "-step"]),
)
def test_counts_agree_while_the_log_grows(tmp_path: Path, data: bytes, cuts: list[int], typed: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    file = LogFile(str(path))
    file.refresh()
    try:
        query = Query.parse(typed)
        task = Task(LogRef(1, "0", "stdout", path), file, query)
        lines = Task(LogRef(1, "0", "stdout", path), file, counts=file.newlines)
        for cut in sorted({min(cut, len(data)) for cut in [*cuts, len(data)]}):
            path.write_bytes(data[:cut])
            file.refresh()
            while task.step() or lines.step():
                pass
            wanted = [text for _, text in reference(data[:cut])]
            assert task.total == sum(query.says(text) for text in wanted)
            assert file.line_count == len(wanted)
    finally:
        file.close()


def test_a_count_over_many_chunks_finds_each_match_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "CHUNK_BYTES", 100)
    for module in (logmerge, logscan):
        monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    data = b"".join(b"line %d %s\n" % (n, b"hit" if n % 7 == 0 else b"y" * (n % 150)) for n in range(500))
    file = opened(tmp_path / "log", data)
    each = Stream(LogRef(1, "0", "stdout", tmp_path / "log"), file, 0.0, never)
    each.ask(Query.parse("hit"))
    task = Task(each.ref, file, each.query)
    while task.step():
        pass
    wanted = [f"line {n} hit" for n in range(0, 500, 7)]
    for counts in (None, task.counts):
        each.counts = counts
        assert [line.text for line in each.forward(0)] == wanted
        assert [line.text for line in each.backward(file.size)] == wanted[::-1]
    assert task.total == len(wanted)
    file.close()


def test_where_to_go_is_a_line_or_a_time() -> None:
    assert parse_jump("12 345", 2) == ToLine(2, 12345)
    with_day = parse_jump(":2026-11-21 14:52:10", 0)
    assert isinstance(with_day, ToTime)
    assert with_day.has_day
    assert time.localtime(with_day.t)[:6] == (2026, 11, 21, 14, 52, 10)
    without = parse_jump("14:52", 0)
    assert isinstance(without, ToTime)
    assert not without.has_day
    for bad in ("soon", "25:00", "2026-13-01 10:00"):
        with pytest.raises(BadJumpError):
            parse_jump(bad, 0)
