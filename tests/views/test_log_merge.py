"""The log views' merging: pages of many logs as one, in the order of their times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.stamps import stamp_of
from supervisor.views.logs import file as logfile
from supervisor.views.logs.file import LogFile
from supervisor.views.logs.merge import rows_before, rows_from
from supervisor.views.logs.sources import LogRef
from supervisor.views.logs.stream import Stream
from tests.views.logs_on_disk import QUIET, never


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boundaries everywhere: what is cut at 32 KiB otherwise is cut at some bytes."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 37)
    monkeypatch.setattr(logfile, "MIN_STRIDE_BYTES", 5)


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
    t = streams[0].clock.key(rows[0].parts[0][1])
    place = tuple(s.clock.offset_at(t + 30) for s in streams)
    assert next(iter(rows_from(streams, place))).text.split()[3:5] == ["zero", "30"]
    for each in streams:
        each.file.close()


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


def test_what_pytorchs_hook_prints_stays_together_from_wherever_it_is_read(tmp_path: Path) -> None:
    """Its lines alone bear the rank in the rank's own log, so that a message may have any lines."""
    printed = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 10, in <module>',
        "[rank1]: RuntimeError: cannot read the batch",
        "[rank1]: second line of the message",
        "",
        "[rank1]: The above exception was the direct cause of the following exception:",
        "",
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 15, in <module>',
        "[rank1]: ValueError: second",
        "[rank1]: third",
        "",
        "[rank1]: after a blank",
    ]
    mine = [*(f"note {n}" for n in range(9)), *printed, "left"]
    logs = [
        stream(tmp_path / "0", "".join(f"step {n}\n" for n in range(60)).encode(), "0"),
        stream(tmp_path / "1", "".join(f"{line}\n" for line in mine).encode(), "1"),
    ]
    whole = [row.text for row in rows_from(logs, (0, 0))]
    texts = [line.removeprefix("[rank1]: ") for line in printed]
    first = whole.index(texts[0])
    assert whole[first : first + len(texts)] == texts
    ends = tuple(log.file.size for log in logs)
    for most in range(5, 60):
        seen = [row.text for row in rows_before(logs, ends, most)]
        assert seen == whole[-len(seen) :], f"the last {most} rows are those of the whole log"
