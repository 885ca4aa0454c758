"""The order of a launcher's lines against its ranks': of one attempt as on the log screen, of several as in the pane."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.run.growth import GrowthClock, write_growth
from supervisor.run.paths import RunPaths
from supervisor.views.logs import commands as lc
from supervisor.views.logs import file as logfile
from supervisor.views.logs.merge import Row, rows_before
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import Tone
from supervisor.views.logs.viewport import LogViewport
from supervisor.views.tui.logs.rows import lines_text
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


def viewport_of(
    run: RunPaths, height: int = 200, *, ended_t: float | None = T0 + 11, newest: int = 0
) -> LogViewport:
    view = LogViewport(run.node(), never, newest)
    view.update(launched(2, ended_t=ended_t))
    view.height = height
    view.refresh(T0 + 12)
    return view


def rows_of(
    run: RunPaths,
    *,
    folds: bool = True,
    ended_t: float | None = T0 + 11,
    newest: int = 0,
    typed: str = "",
) -> list[Row]:
    view = viewport_of(run, ended_t=ended_t, newest=newest)
    view.folds = folds
    view.show(Query.parse(typed))
    try:
        return list(view.page().rows)
    finally:
        view.logs.close()


def texts_of(run: RunPaths, *, ended_t: float | None = T0 + 11) -> list[str]:
    """What the log screen shows, which the pane shows too."""
    rows = rows_of(run, ended_t=ended_t)
    assert rows == rows_of(run, ended_t=ended_t, newest=2)
    return [row.text for row in rows]


ORDER = [
    "RuntimeError: shape",
    "RuntimeError: Connection closed by peer",
    CLOSING,
    FAILED,
    "launcher: ChildFailedError: train.py FAILED, rank 1 exitcode 1",
]


def test_ranks_speak_before_the_launcher_reports(tmp_path: Path) -> None:
    run = failed(tmp_path)
    texts = texts_of(run)
    assert [text for text in texts if text in ORDER] == ORDER
    assert texts[: len(STEPS)] == STEPS


@pytest.mark.parametrize("written_s", [10.0, 10.2])
def test_at_the_failure_lines_stand_in_the_same_order_at_every_height(
    tmp_path: Path, written_s: float
) -> None:
    run = failed(tmp_path)
    os.utime(run.node().attempt(1).root / "1/stderr.log", (T0 + written_s, T0 + written_s))
    whole = [row.text for row in rows_of(run)]
    assert "RuntimeError: shape" in whole
    for height in range(3, 24):
        view = viewport_of(run, height, newest=2)
        view.keep_cause(lc.CauseLine(1, "1/stderr.log", 5, "RuntimeError: shape"))
        texts = [row.text for row in view.page().rows]
        view.logs.close()
        assert "RuntimeError: shape" in texts
        assert any(texts == whole[n : n + height] for n in range(len(whole) - height + 1)), (height, texts)


def test_a_copied_run_that_lost_its_files_times_is_ordered_alike(tmp_path: Path) -> None:
    run = failed(tmp_path)
    files = sorted(run.node().attempt(1).root.rglob("*.log"))
    random.Random(7).shuffle(files)
    for n, path in enumerate(files):
        os.utime(path, (T0 + 86400 + n, T0 + 86400 + n))
    texts = texts_of(run)
    assert texts[-3:] == ORDER[-3:]
    assert texts[: len(STEPS)] == STEPS


def test_a_stop_ends_on_the_ranks_lines_and_one_of_the_launcher(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for rank in (0, 1):
        write(run, f"{rank}/stdout.log", STEPS, T0 + 10.2)
    write(run, "agent.log", [DEATH, *STOPPED], T0 + 10.9)
    texts = texts_of(run)
    assert texts == [*STEPS, DEATH, "launcher: SignalException: Process 4242 got signal: 15"]


def test_the_launcher_waits_for_a_rank_whose_file_says_it_wrote_later(tmp_path: Path) -> None:
    run = failed(tmp_path)
    # Another machine's clock: the rank's files are two seconds ahead of the launcher's.
    late = run.node().attempt(1).root / "1/stderr.log"
    os.utime(late, (T0 + 12.5, T0 + 12.5))
    texts = texts_of(run, ended_t=None)
    assert texts.index("RuntimeError: shape") < texts.index(FAILED) < len(texts) - 1


def test_what_the_launcher_says_first_stands_first(tmp_path: Path) -> None:
    run = failed(tmp_path)
    write(run, "agent.log", ["NOTE: one process a device", CLOSING, FAILED, *REPORT], T0 + 10.7)
    texts = texts_of(run)
    assert texts[0] == "NOTE: one process a device"
    assert texts[-3:] == ORDER[-3:]


def stamped(second: int, text: str) -> str:
    return f"[2026-11-21 10:00:{second:02}] {text}"


def test_within_a_second_that_stamps_do_not_divide_the_files_tell_the_order(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    steps = [stamped(n, f"step {n}") for n in range(10)]
    write(run, "1/stdout.log", [*steps, stamped(10, "ERROR label 1001 out of range")], T0 + 10.1)
    write(run, "0/stdout.log", [*steps, stamped(10, "ERROR Connection closed by peer")], T0 + 10.4)
    assert [row.who for row in rows_of(run)[-2:]] == [("1",), ("0",)], "the cause, then what followed"


@pytest.mark.parametrize("stamp", [True, False])
def test_of_lines_that_came_between_two_looks_the_cause_stands_first(tmp_path: Path, stamp: bool) -> None:
    run = RunPaths(tmp_path)
    steps = [stamped(n, f"step {n}") if stamp else f"step {n} of 10" for n in range(10)]
    for rank in (0, 1):
        write(run, f"{rank}/stdout.log", steps, T0 + 9.9)
    view = viewport_of(run, ended_t=None)
    for rank, said, t in ((1, "ERROR label 1001", 12.1), (0, "ERROR Connection closed", 12.3)):
        write(run, f"{rank}/stdout.log", [*steps, stamped(12, said) if stamp else said], T0 + t)
    view.refresh(T0 + 12.5)
    assert [row.who for row in view.page().rows[-2:]] == [("1",), ("0",)]


def test_logs_that_were_opened_with_their_first_line_are_ordered_alike(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for rank in (0, 1):
        write(run, f"{rank}/stdout.log", [stamped(0, "step 0")], T0 + 0.5)
    view = viewport_of(run, ended_t=None)
    view.page()
    for rank, said, t in ((1, "ERROR label 1001", 12.1), (0, "ERROR Connection closed", 12.3)):
        lines = [*(stamped(n, f"step {n}") for n in range(12)), stamped(12, said)]
        write(run, f"{rank}/stdout.log", lines, T0 + t)
    view.refresh(T0 + 12.5)
    assert [row.who for row in view.page().rows[-2:]] == [("1",), ("0",)]


def test_a_traceback_stands_below_the_stamped_line_that_its_rank_wrote_a_moment_before(
    tmp_path: Path,
) -> None:
    run = RunPaths(tmp_path)
    lines = [f"2026-11-21 10:00:{n:02},500 INFO step {n}" for n in range(10)]
    write(run, "1/stdout.log", [*lines, "2026-11-21 10:00:10,003 ERROR label 1001"], T0 + 10.0)
    write(run, "1/stderr.log", trace(1, "RuntimeError: shape"), T0 + 10.0)  # the tick before it was written
    assert rows_of(run)[-1].text.endswith("RuntimeError: shape")


def test_equal_tracebacks_fold_whole(tmp_path: Path) -> None:
    run = failed(tmp_path, same=True)
    wanted = trace(None, "RuntimeError: shape")
    said = [(row.who, row.text) for row in rows_of(run)]
    block = [(who, text) for who, text in said if text in wanted]
    assert [text for _, text in block] == wanted, "every line once, together"
    assert {frozenset(who) for who, _ in block} == {frozenset({"0", "1"})}


def test_tracebacks_that_differ_are_not_folded_at_all(tmp_path: Path) -> None:
    run = failed(tmp_path)
    said = [(row.who, row.text) for row in rows_of(run)]
    heads = [n for n, (_, text) in enumerate(said) if text == "Traceback (most recent call last):"]
    assert len(heads) == 2
    for at, rank in zip(heads, ("1", "0"), strict=True):
        assert {who for who, _ in said[at : at + 6]} == {(rank,)}


def test_opened_every_line_of_the_report_is_there(tmp_path: Path) -> None:
    run = failed(tmp_path)
    assert [row.text for row in rows_of(run, folds=False)][-len(REPORT) :] == REPORT
    assert rows_of(run)[-1].tone is Tone.FOLDED


def test_words_are_found_in_what_is_folded(tmp_path: Path) -> None:
    run = failed(tmp_path)
    wanted = [line for line in REPORT if "launch_agent" in line]
    assert [row.text for row in rows_of(run, typed="launch_agent")] == wanted
    view = viewport_of(run)
    view.find(Query.search("launch_agent"), None)
    page = view.page()
    assert page.cursor is not None
    assert page.rows[page.cursor].text == wanted[-1]
    assert not page.folds, "what is found is opened"
    view.logs.close()
    rows = rows_of(run, typed="r0")
    assert rows
    assert all("agent" not in row.who for row in rows)


def test_pages_up_and_down_fold_alike(tmp_path: Path) -> None:
    run = failed(tmp_path)
    everything = [row.text for row in rows_of(run)]
    for height in (3, 7, 20):
        view = viewport_of(run, height)
        try:
            place = tuple(stream.file.size for stream in view.logs.streams)
            upward: list[str] = []
            while before := rows_before(view.logs.streams, place, height, folds=True):
                upward, place = [row.text for row in before] + upward, before[0].place
            assert upward == everything
            view.page()
            view.scroll(-height)
            view.scroll(height)
            assert [row.text for row in view.page().rows] == everything[-height:]
        finally:
            view.logs.close()


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
    view = viewport_of(run, 1000)
    view.folds = folds
    try:
        rows = view.page().rows
        names = [str(s.ref.path.relative_to(run.node().attempt(1).root)) for s in view.logs.streams]
        for i, name in enumerate(names):
            assert [x.text for row in rows for n, x in row.parts if n == i] == wanted.get(name, [])
        place = tuple(stream.file.size for stream in view.logs.streams)
        upward: list[Row] = []
        while before := rows_before(view.logs.streams, place, height, folds=folds):
            upward, place = before + upward, before[0].place
        for i, name in enumerate(names):
            assert [x.text for row in upward for n, x in row.parts if n == i] == wanted.get(name, [])
    finally:
        view.logs.close()


def test_a_filter_of_a_rank_counts_among_that_ranks_lines(tmp_path: Path) -> None:
    view = viewport_of(failed(tmp_path))

    def counted(typed: str) -> str:
        view.show(Query.parse(typed))
        for task in view.logs.tasks(is_asked=True):
            while task.step():
                pass
        view.counts_grew()
        return lines_text(view.page())

    own = len(STEPS) + len(trace(1, "RuntimeError: shape"))
    assert counted("r1 loss") == f"{len(STEPS)} of {own} lines"
    assert counted("r1") == f"{own} lines"
    every = (
        2 * len(STEPS) + len(trace(1, "")) + len(trace(0, "", "all_reduce")) + len([CLOSING, FAILED, *REPORT])
    )
    assert counted("loss") == f"{2 * len(STEPS)} of {every} lines", "without a rank among all of them"
    view.logs.close()


def test_what_a_view_or_the_keeper_saw_arrive_keeps_its_order_on_a_page_that_is_opened_later(
    tmp_path: Path,
) -> None:
    run = RunPaths(tmp_path)
    growth: dict[str, GrowthClock] = {}
    steps = write(run, "0/stdout.log", [], T0)
    warnings = write(run, "0/stderr.log", [], T0)
    pane = LogViewport(run.node(), never, 2, growth)
    pane.update(launched(1))
    pane.refresh(T0)
    for n in range(1, 201):
        t = T0 + n
        wanted = [(steps, f"step {n} loss 0.5")] + [(warnings, f"warning {n}")] * (n % 25 == 0)
        for path, text in wanted:
            with path.open("a") as file:
                file.write(f"{text}\n")
            os.utime(path, (t - 0.4, t - 0.4) if path is steps else (t - 0.2, t - 0.2))
        pane.refresh(t)

    def opened(growth: dict[str, GrowthClock] | None) -> tuple[list[str], str]:
        view = LogViewport(run.node(), never, growth=growth)
        view.update(launched(1, ended_t=T0 + 201))
        view.height = 1000
        view.refresh(T0 + 201)
        page = view.page()
        view.logs.close()
        return [row.text for row in page.rows], page.merged_by

    texts, order = opened(growth)
    at = [n for n, text in enumerate(texts) if text.startswith("warning")]
    assert [texts[n - 1] for n in at] == [f"step {n} loss 0.5" for n in range(25, 201, 25)]
    assert order == "arrival"
    assert opened(None)[1] == "arrival (estimated)", "no view saw them arrive"
    root = run.node().attempt(1).root
    write_growth(run.node().attempt(1), {os.path.relpath(path, root): growth[path] for path in growth})
    assert opened(None) == (texts, order), "the keeper saw them"
    pane.logs.close()
