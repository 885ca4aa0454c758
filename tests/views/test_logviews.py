"""The log engine as the pane uses it: the newest attempt, or the one that a person chooses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from supervisor.views.logs import reading as lc
from supervisor.views.logs.file import Change
from supervisor.views.logs.open_logs import NothingThereError
from supervisor.views.logs.query import Query
from supervisor.views.logs.viewport import LogViewport
from tests.diagnosis.launcher_logs import trace
from tests.views.logs_on_disk import DATA, QUIET, count, never, opened, reference

T0 = 1_795_255_200.0


def state_of(attempts: int, ranks: int, *, ended: bool = True) -> RunState:
    """A run of so many attempts of a minute, each rank with both streams."""
    facts: list[ev.Event] = [ev.RunStarted(t=T0, run_id="x", name="x", mode="launched", host="box")]
    for number in range(1, attempts + 1):
        t = T0 + 60 * number
        facts += [
            ev.LaunchIntended(t=t, attempt=number, argv=(), reason="start"),
            ev.AttemptStarted(t=t, attempt=number, pid=0, start_time=0.0),
        ]
        facts += [
            ev.RankStarted(
                t=t, attempt=number, local_rank=n, rank=n, stdout=f"{n}/stdout.log", stderr=f"{n}/stderr.log"
            )
            for n in range(ranks)
        ]
        if ended or number < attempts:
            facts.append(ev.AttemptEnded(t=t + 50, attempt=number, exit_code=1))
    return replay(facts)


def write(run: RunPaths, attempt: int, name: str, lines: list[str], *, open_line: str = "") -> Path:
    path = run.node().attempt(attempt).root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines) + open_line, encoding="utf-8")
    t = T0 + 60 * attempt + 40
    os.utime(path, (t, t))
    return path


@contextmanager
def view_of(run: RunPaths, state: RunState, *, height: int = 100) -> Iterator[LogViewport]:
    view = LogViewport(run.node(), never)
    view.height = height
    view.update(state)
    view.refresh()
    for stream in view.logs.streams:
        count(stream.file)
    try:
        yield view
    finally:
        view.logs.close()


def texts(view: LogViewport) -> list[str]:
    return [row.text for row in view.page().rows]


def attempts_on_disk(root: Path, attempts: int = 4, lines: int = 5) -> RunPaths:
    run = RunPaths(root)
    for number in range(1, attempts + 1):
        for rank in range(2):
            write(run, number, f"{rank}/stdout.log", [f"attempt {number} line {n}" for n in range(lines)])
    return run


def hourly(days: int) -> list[str]:
    """A line an hour, each a second time without a stamp, up to the time at which `write` lets the file be written."""
    lines = []
    for n in range(24 * days, -1, -1):
        stamp = time.strftime("%m/%d %H:%M:%S", time.gmtime(T0 + 100 - 3600 * n))
        lines += [f"{stamp} - INFO - hour {n}, eta: 00:00:05", f"INFO:hour {n} eta: 00:00:05"]
    return lines


def under_cursor(view: LogViewport) -> str:
    page = view.page()
    return page.rows[page.cursor].text if page.cursor is not None else ""


def test_a_time_leads_to_its_newest_day_where_stamps_name_month_and_day_in_every_second_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    run = RunPaths(tmp_path / "run")
    write(run, 1, "0/stdout.log", hourly(3))  # it ends at 10:01:40
    with view_of(run, state_of(1, 1, ended=False), height=10) as view:
        for hour, before in ((12, 22), (9, 1), (10, 0)):
            view.to_place(lc.LogAt(t=T0 + 3600 * (hour - 10), is_any_day=True))
            assert f"hour {before}," in under_cursor(view), hour
        view.to_place(lc.LogAt(t=T0 - 2 * 86400))
        assert "hour 48," in under_cursor(view)
        with pytest.raises(NothingThereError, match=r"^no line is as late as 10:00:00$"):
            view.to_place(lc.LogAt(t=T0 + 86400))


def test_another_rank_is_shown_at_the_time_of_the_line_under_the_cursor(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    for rank in range(3):
        lines = [f"2026-11-21 10:00:{n:02},500 rank {rank} at {n}" for n in range(60 if rank < 2 else 20)]
        write(run, 1, f"{rank}/stdout.log", lines)
    with view_of(run, state_of(1, 3, ended=False), height=10) as view:
        view.to_start()
        view.show(Query.parse("r0"), view.page().rows[0])
        view.to_place(lc.LogAt(path="0/stdout.log", line=31))
        for rank in (1, 0, 1):
            page = view.page()
            assert page.cursor is not None
            view.show(Query.parse(f"r{rank}"), page.rows[page.cursor])
            assert under_cursor(view) == f"2026-11-21 10:00:30,500 rank {rank} at 30"
        page = view.page()
        assert page.cursor is not None
        view.show(Query.parse("r2"), page.rows[page.cursor])
        assert view.page().rows[-1].text.endswith("rank 2 at 19"), "it wrote nothing later"
        view.show(Query.parse("r0-1"))
        for rank in range(2):
            view.to_place(lc.LogAt(path=f"{rank}/stdout.log", line=31))
            page = view.page()
            assert (page.merged_by, page.cursor) == ("time", 5)
            there = [f"2026-11-21 10:00:{n},500 rank {r} at {n}" for n in range(27, 33) for r in range(2)]
            assert [row.text for row in page.rows] == there[1 + rank : 11 + rank]


def test_a_page_says_where_it_is_and_what_is_around_it(tmp_path: Path) -> None:
    run = attempts_on_disk(tmp_path, 2, lines=0)
    path = write(run, 2, "0/stdout.log", [f"line {n:03}" for n in range(1, 101)])
    with view_of(run, state_of(2, 2, ended=False), height=10) as view:
        page = view.page()
        assert [row.text for row in page.rows] == [f"line {n:03}" for n in range(91, 101)]
        assert (page.cursor, page.jump, page.following, page.grows, page.below) == (None, 0, True, True, None)
        assert (page.attempt, page.attempts, page.ranks, page.merged_by) == (2, 2, ("0", "1"), "")
        assert (page.numbers, page.line_count, page.size_bytes) == (tuple(range(91, 101)), 100, 900)
        assert page.logs[page.alone or 0].path == path
        view.to_place(lc.LogAt(path="0/stdout.log", line=51))
        view.to_place(lc.LogAt(attempt=2, path=str(path), offset=50 * 9))
        page = view.page()
        assert [row.text for row in page.rows] == [f"line {n:03}" for n in range(46, 56)]
        assert (page.cursor, page.jump, page.following, page.below) == (5, 2, False, 45)
        assert (page.place_ratio, page.shown, page.search, page.empty_why) == (0.55, None, None, "")
        assert page.place_of(page.rows[5]) == lc.LogAt(attempt=2, path=str(path), offset=450)
        view.show(Query.parse("line 09"), page.rows[5])
        view.find(Query.search("9"), None)
        while view.logs.count(is_moved=True):
            pass
        page = view.page()
        assert page.shown == lc.Tally(11, 1.0)
        assert page.search == lc.Tally(11, 1.0, 11, at_match=True)
        assert [row.text for row in page.rows] == [f"line {n:03}" for n in range(90, 100)]
        with pytest.raises(NothingThereError, match=r"^not found$"):
            view.find(Query.search("08"), None)
        with pytest.raises(NothingThereError, match=r"^that line is not there any more$"):
            view.to_place(lc.LogAt(path=str(path), offset=10_000))


def test_an_attempt_before_the_first_and_behind_the_last_is_refused(tmp_path: Path) -> None:
    run = attempts_on_disk(tmp_path, 3)
    with view_of(run, state_of(3, 2, ended=False)) as view:
        path = str(view.logs.streams[3].ref.path)
        names = [
            path,
            "1/stdout.log",
            "./1/stdout.log",
            "stdout.log",
            "agent.log",
            "tdout.log",
            "2/agent.log",
        ]
        assert [view.logs.index_of(name) for name in names] == [3, 3, 3, 1, 0, None, None]
        with pytest.raises(NothingThereError, match=r"^attempt 3 is the last$"):
            view.other_attempt(1)
        for number in (2, 1):
            view.other_attempt(-1)
            page = view.page()
            assert (page.attempt, page.grows, page.following) == (number, False, True)
            assert page.rows[-1].text == f"attempt {number} line 4"
        with pytest.raises(NothingThereError, match=r"^attempt 1 is the first$"):
            view.other_attempt(-1)
        view.to_place(lc.LogAt(attempt=3, path="1/stdout.log", line=1))
        assert (view.page().attempt, under_cursor(view)) == (3, "attempt 3 line 0")
        view.other_attempt(-1)
        view.follow()
        assert view.page().attempt == 3
        view.update(RunState())
        view.other_attempt(-1)
        assert view.page().empty_why == "no log file has appeared yet"


def test_a_row_is_copied_without_secrets_and_is_of_the_step_above(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    said = ["step 7 loss 2.5", *["plain"] * 61, "step 8 loss 2.4", "api_key=sk-0123456789abcdefghij"]
    write(run, 1, "0/stdout.log", [f"[rank0]: {text}" for text in said])
    write(run, 1, "0/stderr.log", ["x" * 9_999] * 60)
    with view_of(run, state_of(1, 1)) as view:
        view.show(Query.parse("stream:stdout"))
        rows = view.page().rows
        steps = {n: view.point(rows[n]).step for n in (0, 1, 60, 61, 62)}
        assert steps == {0: 7, 1: 7, 60: 7, 61: None, 62: 8}
        assert view.point(rows[63]) == lc.LogAt(attempt=1, step=8, t=T0 + 100)
        assert view.copied(rows[63], rows[62]) == lc.Copied("step 8 loss 2.4\napi_key=<redacted>", 2)
        view.show(Query.parse("stream:stderr"))
        rows = view.page().rows
        assert view.copied(rows[0], rows[-1]).lines == 50, "more than a terminal passes on"


def test_an_empty_page_says_why(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    with view_of(run, state_of(1, 1)) as view:
        assert view.page().empty_why == "0/stdout.log: No such file or directory"
        view.update(state_of(1, 0))
        assert view.page().empty_why == "no log file has appeared yet"
        write(run, 1, "agent.log", [])
        view.refresh()
        assert view.page().empty_why == "no log of a rank is known"
        write(run, 1, "0/stdout.log", [])
        view.update(state_of(1, 2))
        assert view.page().empty_why == "the ranks have not written a line yet"
        write(run, 1, "0/stdout.log", ["x"])
        view.refresh()
        said = {
            "r2-3": "this log has ranks 0-1",
            "node:2,4": "there is no node 2,4",
            "zzz": "no line matches",
        }
        for typed, why in said.items():
            view.show(Query.parse(typed))
            assert view.page().empty_why == f"{why}; f changes the filter, Esc clears it"


def test_a_new_attempt_does_not_move_who_stands_in_an_old_one(tmp_path: Path) -> None:
    run = attempts_on_disk(tmp_path)
    with view_of(run, state_of(2, 2), height=3) as view:
        view.page()
        view.scroll(-1)
        stood = texts(view)
        assert stood[0].startswith("attempt 2")
        view.update(state_of(4, 2))
        view.refresh()
        assert texts(view) == stood
        assert view.page().below == 2
        view.follow(on=True)
        assert texts(view)[0].startswith("attempt 4"), "to the newest again"


def test_last_lines_are_the_ranks_own_whatever_the_query(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    write(run, 1, "0/stdout.log", ["old"])
    write(run, 2, "0/stdout.log", ["step 1", "step 2", "  "])
    write(run, 2, "1/stdout.log", ["step 1"], open_line="50%|\r 60%|")
    write(run, 2, "agent.log", ["starting", "[rank2]: over there"])
    with view_of(run, state_of(2, 2)) as view:
        view.show(Query.parse("zzz"))
        assert view.page().rows == ()
        wanted = {"0": "step 2", "1": " 60%|", "agent": "starting", "2": "over there"}
        assert dict(view.page().last_lines) == wanted


# -- the line that a verdict names -----------------------------------------------------------------------


def failed(root: Path, *, more: int = 40) -> RunPaths:
    run = RunPaths(root)
    for rank in (0, 1):
        text = f"RuntimeError: shape{'' if rank else ' of rank 0'}"
        write(run, 1, f"{rank}/stderr.log", [*trace(None, text), *(f"{rank} after {n}" for n in range(more))])
    return run


def test_the_cause_is_kept_in_sight_until_somebody_moves(tmp_path: Path) -> None:
    run = failed(tmp_path)
    with view_of(run, state_of(1, 2), height=9) as view:
        view.keep_cause(lc.LogAt(1, path="1/stderr.log", line=6, text="RuntimeError: shape"))
        page = view.page()
        assert page.at_cause
        assert page.following
        assert page.cause is not None
        assert page.rows[page.cause].text == "RuntimeError: shape"
        assert len(page.rows) == 9
        assert len(page.rows) - 1 - page.cause == 3, "a third of the page is below, the traceback above"
        assert page.below is not None
        assert page.below > 30
        view.scroll(1)
        assert not view.page().following
        view.follow(on=True)
        assert not view.page().at_cause, "a person has seen it"
        view.keep_cause(lc.LogAt(1, path="0/stderr.log", line=6, text="RuntimeError: shape of rank 0"))
        assert view.page().at_cause, "another one"
        view.show(Query.parse("after"))
        assert not view.page().at_cause, "the filter leaves it out"


# -- a replay --------------------------------------------------------------------------------------------


@QUIET
@given(data=DATA, limit=st.integers(0, 2000))
def test_a_limited_log_reads_like_one_that_ends_there(tmp_path: Path, data: bytes, limit: int) -> None:
    cut = data[:limit]
    file = opened(tmp_path / "log", data)
    try:
        file.limit(limit)
        file.refresh()
        assert file.size == len(cut)
        assert [(x.offset, x.text) for x in file.forward(0)] == reference(cut)
        assert [(x.offset, x.text) for x in file.backward(len(cut))] == reference(cut)[::-1]
        assert file.line_count == len(reference(cut))
        file.limit(limit // 2)
        assert file.refresh() is (Change.REWOUND if file.size < len(cut) else Change.SAME)
        file.limit(len(data))
        file.refresh()
        assert file.line_count == len(reference(data))
    finally:
        file.close()


# -- whose lines a query lets through ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("r1", {"step 1", "UserWarning: slow", "step 9 by prefix"}),
        ("r0-1 step", {"step 1", "step 9 by prefix"}),
        ("ragent", {"starting"}),
        ("stream:stderr", {"ValueError: x", "UserWarning: slow"}),
        ("stream:agent", {"starting", "step 9 by prefix"}),
        ("stream:stderr level:error r1", set()),
        ("level:warn -error", {"UserWarning: slow"}),
    ],
)
def test_a_query_by_rank_stream_and_level(tmp_path: Path, typed: str, shown: set[str]) -> None:
    run = RunPaths(tmp_path)
    for rank, said in enumerate(("ValueError: x", "UserWarning: slow")):
        write(run, 1, f"{rank}/stdout.log", ["step 1"])
        write(run, 1, f"{rank}/stderr.log", [said])
    write(run, 1, "agent.log", ["starting", "[rank1]: step 9 by prefix"])
    with view_of(run, state_of(1, 2)) as view:
        view.show(Query.parse(typed))
        assert set(texts(view)) == shown


def test_what_happens_to_a_file_is_said_and_the_page_follows_it(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    path = write(run, 1, "0/stdout.log", [f"line {n}" for n in range(500)])
    with view_of(run, state_of(1, 1, ended=False)) as view:
        view.page()
        view.find(Query.search("line 1"), None)
        path.write_bytes(b"cut short: line 1\n")
        assert notes_of(view) == ["0/stdout.log was cut or replaced; it is read again"]
        while view.logs.count(is_moved=True):
            pass
        page = view.page()
        assert (page.cursor, page.search) == (None, lc.Tally(1, 1.0))
        assert texts(view) == ["cut short: line 1"]
        view.follow()
        path.unlink()
        assert notes_of(view) == []
        assert texts(view) == ["cut short: line 1"]
        path.write_bytes(b"back again\n")
        notes_of(view)
        assert texts(view) == ["back again"]


# -- where a person goes -----------------------------------------------------------------------------------


def notes_of(view: LogViewport) -> list[str]:
    return view.refresh()[1]


@pytest.mark.parametrize(("step", "line"), [(1200, "step 1200 "), (1001, "step 1010 ")])
def test_a_step_or_the_nearest_later_one(tmp_path: Path, step: int, line: str) -> None:
    run = RunPaths(tmp_path)
    lines = [f"step {n} loss {2.5 - n / 10_000:.4f} lr 0.0001" for n in range(0, 3000, 10)]
    write(run, 1, "0/stdout.log", [text for each in lines for text in (each, "some other line 99999")])
    with view_of(run, state_of(1, 1)) as view:
        view.to_place(lc.LogAt(step=step))
        assert under_cursor(view).startswith(line)
        with pytest.raises(NothingThereError, match="no line names step 9000 or a later one"):
            view.to_place(lc.LogAt(step=9000))


def test_a_line_that_the_filter_leaves_out_leads_to_the_next_kept_one(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    lines = [f"line {n}{' ERROR' * (n % 100 == 7)}" for n in range(1, 3001)]
    path = write(run, 1, "0/stdout.log", lines)
    with view_of(run, state_of(1, 1), height=10) as view:
        view.show(Query.parse("error"))
        for number, kept in ((1200, 1207), (2999, 2907), (1507, 1507)):
            view.to_place(lc.LogAt(path=str(path), line=number))
            assert under_cursor(view) == f"line {kept} ERROR"
            filtered = "that line is filtered out: here is the nearest that is kept"
            assert notes_of(view) == [filtered] * (number != kept)
        view.show(Query.parse("elephant"))
        with pytest.raises(NothingThereError, match="no line matches"):
            view.to_place(lc.LogAt(path=str(path), line=5))
        with pytest.raises(NothingThereError, match="has 3000 lines"):
            view.to_place(lc.LogAt(path=str(path), line=3001))
        with pytest.raises(NothingThereError, match=r"else\.log is no log of attempt 1"):
            view.to_place(lc.LogAt(path="else.log", line=1))


def test_a_lower_page_keeps_the_row_with_the_cursor(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    write(run, 1, "0/stdout.log", [f"line {n}" for n in range(1, 500)])
    with view_of(run, state_of(1, 1), height=40) as view:
        view.to_start()
        row = view.page().rows[30]
        for height in (20, 12, 40):
            view.resize(height, row)
            rows = view.page().rows
            assert len(rows) == height
            assert row.text in {each.text for each in rows}


def test_a_time_is_not_looked_for_in_a_log_without_times(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    write(run, 1, "0/stdout.log", [f"line {n}" for n in range(500)])
    with view_of(run, state_of(1, 1), height=10) as view:
        view.to_place(lc.LogAt(path="0/stdout.log", line=42))
        with pytest.raises(NothingThereError, match="the log has no times: give a line's number"):
            view.to_place(lc.LogAt(t=1_000_000_000.0))
        assert under_cursor(view) == "line 41"
        view.to_place(lc.LogAt(t=T0 + 80))
        assert notes_of(view) == ["the log has no times: this is about where it stood then"]


@pytest.mark.parametrize("typed", ["r2", "r2 loss"])
def test_of_a_log_that_names_no_rank_the_answer_to_a_filter_by_rank_says_so(
    tmp_path: Path, typed: str
) -> None:
    state = replay(
        [
            ev.RunStarted(t=T0, run_id="x", name="x", mode="observed", host="box"),
            ev.LaunchIntended(t=T0, attempt=1, argv=(), reason="start"),
            ev.RankStarted(t=T0, attempt=1, local_rank=0, stdout=str(tmp_path / "train.log")),
        ]
    )
    (tmp_path / "train.log").write_text("step 1 loss 2.5\n" * 100, encoding="utf-8")
    with view_of(RunPaths(tmp_path / "run"), state) as view:
        view.show(Query.parse(typed))
        assert view.page().empty_why.startswith("the lines name no ranks: filter by words instead")
