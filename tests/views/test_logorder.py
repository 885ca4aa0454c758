"""The order of a launcher's lines against its ranks', in the log screen's merge and in the dashboard's pane."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.run.paths import RunPaths
from supervisor.views.logs import file as logfile
from supervisor.views.logs.merge import Row, rows_before
from supervisor.views.logs.navigation import LogWalker
from supervisor.views.logs.newest import LogReader, Tone
from supervisor.views.tui.logs.buffer import LogBuffer, LogFilter
from tests.diagnosis.launcher_logs import CLOSING, DEATH, FAILED, REPORT, STOPPED, T0, launched, trace
from tests.views.logs_on_disk import never

STEPS = [f"step {n} loss {3 / n:.4f}" for n in range(1, 60)]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamps of the recorded lines are UTC."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def write(run: RunPaths, name: str, lines: list[str], t: float) -> Path:
    path = run.node().attempt(1).root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.utime(path, (t, t))
    return path


def failed(root: Path, *, same: bool = False) -> RunPaths:
    """Rank 1 raises at 10:00:10.0, rank 0 falls after it, the launcher reports."""
    run = RunPaths(root)
    for rank in (0, 1):
        write(run, f"{rank}/stdout.log", STEPS, T0 + 9.9)
    last = "RuntimeError: shape" if same else "RuntimeError: Connection closed by peer"
    write(run, "1/stderr.log", trace(1, "RuntimeError: shape"), T0 + 10.0)
    write(run, "0/stderr.log", trace(0, last, "forward" if same else "all_reduce"), T0 + 10.2)
    write(run, "agent.log", [CLOSING, FAILED, *REPORT], T0 + 10.7)
    return run


def desk_of(run: RunPaths, height: int = 200, *, ended_t: float | None = T0 + 11) -> LogWalker:
    desk = LogWalker(run.node(), never)
    desk.know(launched(2, ended_t=ended_t))
    desk.height = height
    desk.refresh(T0 + 12)
    return desk


def rows_of(run: RunPaths, *, folds: bool = True, ended_t: float | None = T0 + 11) -> list[Row]:
    desk = desk_of(run, ended_t=ended_t)
    desk.folds = folds
    try:
        return list(desk.page().rows)
    finally:
        desk.close()


def buffer_of(run: RunPaths, *, ended_t: float | None = T0 + 11) -> LogBuffer:
    buffer = LogBuffer()
    buffer.add(LogReader(run.node()).refresh(launched(2, ended_t=ended_t)).lines)
    return buffer


SAID = [
    "RuntimeError: shape",
    "RuntimeError: Connection closed by peer",
    CLOSING,
    FAILED,
    "launcher: ChildFailedError: train.py FAILED, rank 1 exitcode 1",
]


def test_ranks_speak_before_the_launcher_reports(tmp_path: Path) -> None:
    run = failed(tmp_path)
    for texts in ([row.text for row in rows_of(run)], [entry.text for entry in buffer_of(run).visible]):
        assert [text for text in texts if text in SAID] == SAID
        assert texts[: len(STEPS)] == STEPS


def test_a_copied_run_that_lost_its_files_times_is_ordered_alike(tmp_path: Path) -> None:
    run = failed(tmp_path)
    files = sorted(run.node().attempt(1).root.rglob("*.log"))
    random.Random(7).shuffle(files)
    for n, path in enumerate(files):
        os.utime(path, (T0 + 86400 + n, T0 + 86400 + n))
    for texts in ([row.text for row in rows_of(run)], [entry.text for entry in buffer_of(run).visible]):
        assert texts[-3:] == SAID[-3:]
        assert texts[: len(STEPS)] == STEPS


def test_a_stop_ends_on_the_ranks_lines_and_one_of_the_launcher(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for rank in (0, 1):
        write(run, f"{rank}/stdout.log", STEPS, T0 + 10.2)
    write(run, "agent.log", [DEATH, *STOPPED], T0 + 10.9)
    for texts in ([row.text for row in rows_of(run)], [entry.text for entry in buffer_of(run).visible]):
        assert texts == [*STEPS, DEATH, "launcher: SignalException: Process 4242 got signal: 15"]


def test_the_launcher_waits_for_a_rank_whose_file_says_it_wrote_later(tmp_path: Path) -> None:
    run = failed(tmp_path)
    # Another machine's clock: the rank's files are two seconds ahead of the launcher's.
    late = run.node().attempt(1).root / "1/stderr.log"
    os.utime(late, (T0 + 12.5, T0 + 12.5))
    for texts in (
        [row.text for row in rows_of(run, ended_t=None)],
        [entry.text for entry in buffer_of(run, ended_t=None).visible],
    ):
        assert texts.index("RuntimeError: shape") < texts.index(FAILED) < len(texts) - 1


def test_what_the_launcher_says_first_stands_first(tmp_path: Path) -> None:
    run = failed(tmp_path)
    write(run, "agent.log", ["NOTE: one process a device", CLOSING, FAILED, *REPORT], T0 + 10.7)
    for texts in ([row.text for row in rows_of(run)], [entry.text for entry in buffer_of(run).visible]):
        assert texts[0] == "NOTE: one process a device"
        assert texts[-3:] == SAID[-3:]


def test_equal_tracebacks_fold_whole(tmp_path: Path) -> None:
    run = failed(tmp_path, same=True)
    wanted = trace(None, "RuntimeError: shape")
    for said in (
        [(row.who, row.text) for row in rows_of(run)],
        [(entry.who, entry.text) for entry in buffer_of(run).visible],
    ):
        block = [(who, text) for who, text in said if text in wanted]
        assert [text for _, text in block] == wanted, "every line once, together"
        assert {frozenset(who) for who, _ in block} == {frozenset({"0", "1"})}


def test_tracebacks_that_differ_are_not_folded_at_all(tmp_path: Path) -> None:
    run = failed(tmp_path)
    for said in (
        [(row.who, row.text) for row in rows_of(run)],
        [(entry.who, entry.text) for entry in buffer_of(run).visible],
    ):
        heads = [n for n, (_, text) in enumerate(said) if text == "Traceback (most recent call last):"]
        assert len(heads) == 2
        for at, rank in zip(heads, ("1", "0"), strict=True):
            assert {who for who, _ in said[at : at + 6]} == {(rank,)}


def test_opened_every_line_of_the_report_is_there(tmp_path: Path) -> None:
    run = failed(tmp_path)
    assert [row.text for row in rows_of(run, folds=False)][-len(REPORT) :] == REPORT
    buffer = buffer_of(run)
    whole = len(buffer.visible)
    assert buffer.reports == 1
    buffer.open_reports(True)
    assert [entry.text for entry in buffer.visible[-len(REPORT) :]] == REPORT
    buffer.open_reports(False)
    assert len(buffer.visible) == whole
    assert buffer.visible[-1].tone is Tone.FOLDED


def test_words_are_found_in_what_is_folded(tmp_path: Path) -> None:
    run = failed(tmp_path)
    buffer = buffer_of(run)
    found = buffer.find("launch_agent", len(buffer.visible) - 1, -1)
    assert found == len(buffer.visible) - 1
    buffer.set_filter(LogFilter.parse("launch_agent"))
    assert [entry.text for entry in buffer.visible] == [line for line in REPORT if "launch_agent" in line]
    buffer.set_filter(LogFilter.parse("r0"))
    assert buffer.visible
    assert all("agent" not in entry.who for entry in buffer.visible)


def test_pages_up_and_down_fold_alike(tmp_path: Path) -> None:
    run = failed(tmp_path)
    everything = [row.text for row in rows_of(run)]
    for height in (3, 7, 20):
        desk = desk_of(run, height)
        try:
            place = tuple(stream.file.size for stream in desk._streams)
            upward: list[str] = []
            while before := rows_before(desk._streams, place, height, folds=True):
                upward, place = [row.text for row in before] + upward, before[0].place
            assert upward == everything
            desk.page()
            desk.scroll(-height)
            desk.scroll(height)
            assert [row.text for row in desk.page().rows] == everything[-height:]
        finally:
            desk.close()


LINES = st.lists(
    st.sampled_from(
        [
            *trace(None, "ValueError: x"),
            *trace(None, "ValueError: y"),
            *REPORT[-4:],
            "",
            "step 1",
            FAILED,
            CLOSING,
            "During handling of the above exception, another exception occurred:",
        ]
    ),
    max_size=30,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs=st.tuples(LINES, LINES, LINES), height=st.integers(1, 9), folds=st.booleans())
def test_whatever_is_written_every_line_is_shown_once_in_its_logs_order(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    logs: tuple[list[str], list[str], list[str]],
    height: int,
    folds: bool,
) -> None:
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 61)
    monkeypatch.setattr(logfile, "MIN_STRIDE_BYTES", 5)
    run = RunPaths(tmp_path_factory.mktemp("order"))
    for n, (name, lines) in enumerate(zip(("agent.log", "0/stdout.log", "1/stderr.log"), logs, strict=True)):
        write(run, name, lines, T0 + 5 + n)
    wanted = {("agent.log"): logs[0], "0/stdout.log": logs[1], "1/stderr.log": logs[2]}
    desk = desk_of(run, 1000)
    desk.folds = folds
    try:
        rows = desk.page().rows
        names = [str(s.ref.path.relative_to(run.node().attempt(1).root)) for s in desk._streams]
        for i, name in enumerate(names):
            assert [x.text for row in rows for n, x in row.parts if n == i] == wanted.get(name, [])
        place = tuple(stream.file.size for stream in desk._streams)
        upward: list[Row] = []
        while before := rows_before(desk._streams, place, height, folds=folds):
            upward, place = before + upward, before[0].place
        for i, name in enumerate(names):
            assert [x.text for row in upward for n, x in row.parts if n == i] == wanted.get(name, [])
    finally:
        desk.close()
    buffer = LogBuffer()
    buffer.add(LogReader(run.node()).refresh(launched(2)).lines)
    buffer.open_reports(True)
    for who, lines in (("agent", logs[0]), ("0", logs[1]), ("1", logs[2])):
        mine = [entry.text for entry in buffer.visible if who in entry.who]
        assert sorted(set(mine)) == sorted(set(lines))
        assert buffer.total == sum(map(len, logs))
