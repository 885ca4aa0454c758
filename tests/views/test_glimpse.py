"""The end of a log, shown while the app is loaded: harmless text, within the screen, of plain logs alone."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.palette import chosen
from supervisor.views.splash.glimpse import TAIL_BYTES, Glimpse, last_lines
from supervisor.views.splash.picture import Depth, Look, Said, Scene, paint
from tests.hostile import ESCAPES

OURS = re.compile(r"\x1b\[(?:\d+;\d+H|K|\d+X|[\d;]+m)")
PLACED = re.compile(r"\x1b\[(\d+);(\d+)H((?:(?!\x1b\[\d+;\d+H).)*)", re.DOTALL)
LOOK = Look(chosen(None, None), Depth.TRUE)


def test_the_last_lines_and_no_more_is_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {n}\n" for n in range(100_000)), encoding="utf-8")
    assert last_lines(str(log), 3) == ["line 99997", "line 99998", "line 99999"]
    assert len(last_lines(str(log), 1 << 30)) < TAIL_BYTES // 10
    log.write_bytes(b"one\ntwo, not ended")
    assert last_lines(str(log), 9) == ["one", "two, not ended"]
    log.write_bytes(b"")
    assert last_lines(str(log), 9) == []
    log.write_bytes(b"x" * (3 * TAIL_BYTES))
    assert [set(line) for line in last_lines(str(log), 9)] == [{"x", *" …[cut]"}]


def test_what_is_no_plain_text_is_left_to_the_app(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for data in (gzip.compress(b"a line\n"), "a line\n".encode("utf-16"), bytes(range(256))):
        log.write_bytes(data)
        assert last_lines(str(log), 9) == []
    os.mkfifo(tmp_path / "fifo")
    assert last_lines(str(tmp_path / "fifo"), 9) == []
    with pytest.raises(FileNotFoundError):
        last_lines(str(tmp_path / "none"), 9)


@given(
    lines=st.lists(
        st.lists(st.sampled_from([*ESCAPES, b"word ", b"\xe5\xae\xbd"]), max_size=8).map(b"".join),
        max_size=60,
    ),
    width=st.integers(1, 320),
    height=st.integers(1, 100),
)
def test_it_stays_within_the_screen_and_sends_no_escape_of_a_log(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], width: int, height: int
) -> None:
    log = tmp_path_factory.mktemp("glimpse") / "a.log"
    log.write_bytes(b"text first\n" + b"".join(line.replace(b"\0", b"") + b"\n" for line in lines))
    scene = Scene(header=((), (Said("a\x1b[31m.log"),)), lines=last_lines(str(log), height))
    painted = paint(scene, LOOK, width, height)
    assert OURS.sub("", painted).isprintable()
    places = [(int(row), int(column), OURS.sub("", text)) for row, column, text in PLACED.findall(painted)]
    rows = [row for row, _, _ in places]
    assert rows == sorted(set(rows))
    assert all(1 <= row < height for row in rows)
    assert all(column + len(text) <= width + 12 for row, column, text in places if row > 2)


def test_where_nothing_can_be_shown_nothing_is_written(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a line\n", encoding="utf-8")
    read_end, write_end = os.pipe()
    try:
        with Glimpse(write_end) as glimpse:  # no terminal
            glimpse.show_log(str(log), LOOK, {"TERM": "xterm"})
            glimpse.show(Scene(lines=["a line"]), LOOK, {"TERM": "xterm"})
            glimpse.show(Scene(lines=["a line"]), LOOK, {"TERM": "dumb"})
            glimpse.show_log(str(tmp_path / "none"), LOOK, {})
        os.set_blocking(read_end, False)
        with pytest.raises(BlockingIOError):
            os.read(read_end, 1)
    finally:
        os.close(read_end)
        os.close(write_end)
