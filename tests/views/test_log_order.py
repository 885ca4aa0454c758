"""Many logs as one: by arrival, by stamps, or as spread up to the last write; equal lines and tracebacks of ranks folded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.run.arrivals import ArrivalWriter
from supervisor.run.paths import RunPaths
from supervisor.views.logs import file as logfile
from supervisor.views.logs.merge import Row, rows_before
from supervisor.views.logs.query import Query
from supervisor.views.logs.reading import LogAt
from supervisor.views.logs.viewport import LogViewport
from tests.diagnosis.launcher_logs import CLOSING, FAILED, REPORT, T0, launched, trace
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


def index(run: RunPaths, *batches: tuple[str, float]) -> None:
    """The arrival index: all of these files, at once each."""
    attempt = run.node().attempt(1)
    writer = ArrivalWriter(attempt)
    for name, t in batches:
        writer.note(name, (attempt.root / name).stat().st_size, t - 0.05, t)
    writer.close()


def failed(root: Path, *, same: bool = False, is_indexed: bool = True) -> RunPaths:
    """Rank 1 raises at 10:00:10.0, rank 0 falls after it, the launcher reports."""
    run = RunPaths(root)
    for rank in (0, 1):
        write(run, f"{rank}/stdout.log", STEPS, T0 + 9.9)
    last = "RuntimeError: shape" if same else "RuntimeError: Connection closed by peer"
    write(run, "1/stderr.log", trace(1, "RuntimeError: shape"), T0 + 10.0)
    write(run, "0/stderr.log", trace(0, last, "forward" if same else "all_reduce"), T0 + 10.2)
    write(run, "agent.log", [CLOSING, FAILED, *REPORT], T0 + 10.7)
    if is_indexed:
        times = {"0/stdout.log": 9.9, "1/stdout.log": 9.9, "1/stderr.log": 10.0, "0/stderr.log": 10.2}
        index(run, *((name, T0 + t) for name, t in times.items()), ("agent.log", T0 + 10.2))
    return run


@contextmanager
def view_of(
    run: RunPaths, height: int = 200, *, ended_t: float | None = T0 + 11, ranks: int = 2
) -> Iterator[LogViewport]:
    view = LogViewport(run.node(), never)
    view.update(launched(ranks, ended_t=ended_t))
    view.height = height
    view.refresh()
    try:
        yield view
    finally:
        view.logs.close()


def rows_of(run: RunPaths, *, typed: str = "") -> list[Row]:
    with view_of(run) as view:
        view.show(Query.parse(typed))
        return list(view.page().rows)


ORDER = [
    "RuntimeError: shape",
    "RuntimeError: Connection closed by peer",
    CLOSING,
    FAILED,
]


@pytest.mark.parametrize("is_indexed", [True, False], ids=["by arrival", "without an index"])
def test_ranks_speak_before_the_launcher_reports(tmp_path: Path, is_indexed: bool) -> None:
    run = failed(tmp_path, is_indexed=is_indexed)
    if is_indexed:  # what a copy makes of the times of files is nothing to the index
        for path in run.node().attempt(1).root.rglob("*.log"):
            os.utime(path, (T0 + 86400, T0 + 86400))
    texts = [row.text for row in rows_of(run)]
    assert [text for text in texts if text in ORDER] == ORDER
    assert [text for text in texts if text in STEPS] == STEPS, "those of both ranks are one"
    with view_of(run) as view:
        assert view.page().merged_by == ("arrival" if is_indexed else "arrival (estimated)")


def test_lines_stand_as_they_arrived_and_newer_ones_below(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    steps, warnings = write(run, "0/stdout.log", [], T0), write(run, "0/stderr.log", [], T0)
    writer = ArrivalWriter(run.node().attempt(1))
    with view_of(run, 1000, ended_t=None, ranks=1) as view:
        for n in range(1, 101):
            for path, text in [(steps, f"step {n}")] + [(warnings, f"warning {n}")] * (n % 25 == 0):
                with path.open("a") as file:
                    file.write(f"{text}\n")
                name = str(path.relative_to(run.node().attempt(1).root))
                t = T0 + n + 0.2 * (path is warnings)
                os.utime(path, (t, t))
                if n < 100:
                    writer.note(name, path.stat().st_size, t - 0.05, t)
        view.refresh()
        texts = [row.text for row in view.page().rows]
        at = [n for n, text in enumerate(texts) if text.startswith("warning")]
        assert [texts[n - 1] for n in at] == [f"step {n}" for n in range(25, 101, 25)]
        view.to_place(LogAt(t=T0 + 49.9))
        page = view.page()
        assert page.cursor is not None
        assert page.rows[page.cursor].text == "step 50"
    writer.close()
    for t, last in ((T0 + 50.1, "step 50"), (T0 + 50.3, "warning 50"), (T0 + 0.5, None)):
        view = LogViewport(run.node(), never)  # of a replay: what had arrived then
        view.height = 1000
        view.update(launched(1), recorded_t=t)
        view.refresh()
        assert next((row.text for row in reversed(view.page().rows)), None) == last
        view.logs.close()


def stamped(second: int, text: str) -> str:
    return f"[2026-11-21 10:00:{second:02}] {text}"


def test_without_an_index_lines_go_by_their_stamps(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    write(run, "0/stdout.log", [stamped(n, f"zero {n}") for n in range(0, 60, 2)], T0 + 60)
    one = [[stamped(n, f"one {n} {'x' * n}"), "  its second line"] for n in range(1, 60, 2)]
    write(run, "1/stdout.log", [line for lines in one for line in lines], T0 + 60)
    with view_of(run, ended_t=None) as view:
        page = view.page()
        assert page.merged_by == "time"
        assert [int(row.text.split()[3]) for row in page.rows if row.text[0] == "["] == list(range(60))
        assert {page.rows[n + 1].text for n in range(1, 90, 3)} == {"  its second line"}
        view.to_place(LogAt(t=T0 + 30))
        page = view.page()
        assert page.cursor is not None
        assert "zero 30" in page.rows[page.cursor].text


def test_without_times_a_traceback_stands_at_its_logs_last_write(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    write(run, "0/stdout.log", [f"step {n}" for n in range(500)], T0 + 50)
    write(run, "0/stderr.log", trace(None, "ValueError: x"), T0 + 25)
    with view_of(run, 1000, ended_t=T0 + 60, ranks=1) as view:
        texts = [row.text for row in view.page().rows]
        assert 200 < texts.index("ValueError: x") < 300
        assert view.page().merged_by == "arrival (estimated)"


# -- folding ---------------------------------------------------------------------------------------------


def test_equal_lines_fold_though_one_rank_says_more(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for rank in range(4):
        lines = [*STEPS[:20], "UserWarning: slow", *STEPS[20:]] if rank == 2 else STEPS
        write(run, f"{rank}/stdout.log", lines, T0 + 9)
    with view_of(run, ranks=4) as view:
        rows = view.page().rows
    assert [row.who for row in rows if row.text.startswith("step")] == [("0", "1", "2", "3")] * len(STEPS)
    assert [row.who for row in rows if row.text.startswith("User")] == [("2",)]


def test_equal_tracebacks_fold_whole_and_others_not_at_all(tmp_path: Path) -> None:
    wanted = trace(None, "RuntimeError: shape")
    said = [
        (row.who, row.text) for row in rows_of(failed(tmp_path / "a", same=True)) if row.who != ("agent",)
    ]
    block = [(who, text) for who, text in said if text in wanted]
    assert [text for _, text in block] == wanted, "every line once, together"
    assert {frozenset(who) for who, _ in block} == {frozenset({"0", "1"})}
    said = [(row.who, row.text) for row in rows_of(failed(tmp_path / "b")) if row.who != ("agent",)]
    heads = [n for n, (_, text) in enumerate(said) if text == "Traceback (most recent call last):"]
    assert len(heads) == 2
    for at, rank in zip(heads, ("1", "0"), strict=True):
        assert {who for who, _ in said[at : at + 6]} == {(rank,)}


LINES = st.lists(
    st.sampled_from(
        [
            *trace(None, "ValueError: x"), *trace(None, "ValueError: y"), *REPORT[-4:], "", "step 1", "  indented", FAILED,
            CLOSING, "During handling of the above exception, another exception occurred:",
        ]
    ),
    max_size=30,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs=st.tuples(LINES, LINES, LINES), height=st.integers(1, 9))
def test_whatever_is_written_every_line_is_shown_once_in_its_logs_order(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    logs: tuple[list[str], list[str], list[str]],
    height: int,
) -> None:
    monkeypatch.setattr(logfile, "BLOCK_BYTES", 61)
    monkeypatch.setattr(logfile, "STRIDE_BYTES", 5)
    run = RunPaths(tmp_path_factory.mktemp("order"))
    for n, (name, lines) in enumerate(zip(("agent.log", "0/stdout.log", "1/stderr.log"), logs, strict=True)):
        write(run, name, lines, T0 + 5 + n)
    wanted = {("agent.log"): logs[0], "0/stdout.log": logs[1], "1/stderr.log": logs[2]}
    with view_of(run, 1000) as view:
        rows = view.page().rows
        names = [str(s.ref.path.relative_to(run.node().attempt(1).root)) for s in view.logs.streams]
        place, upward = view.logs.ends, list[Row]()
        while before := rows_before(view.logs.streams, place, height):
            upward, place = before + upward, before[0].place
        for i, name in enumerate(names):
            for shown in (rows, upward):
                assert [x.text for row in shown for n, x in row.parts if n == i] == wanted.get(name, [])
