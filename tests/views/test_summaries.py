"""Lists of runs: what is read again, and what a list leaves for the next one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli.runs import facts_of, texts_of
from supervisor.run import events as ev
from supervisor.run import journal
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import write_run_file
from supervisor.views.model import run_list
from supervisor.views.model.run_list import READ_S, RunRow, RunsReader, SortKey, filtered, ordered, rows_of
from tests.keeper.fakes import job_of
from tests.views.tui import recorded

NOW = recorded.T0 + 9000
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
RECORDED: tuple[Callable[[Path], RunPaths], ...] = (
    recorded.succeeded,
    recorded.held,
    recorded.healthy,
    lambda root: recorded.observed(root, root.with_suffix(".log"), is_quiet=True),
)


def shown(row: RunRow) -> tuple[Any, ...]:
    """All that lists show of a run, sort it by and filter it by."""
    sorted_by = [ordered([row], key, NOW) for key in SortKey]
    found = [
        bool(filtered([row], query, NOW))
        for query in ("loss<2.9", "state:failed", "attempts>1", "lr", "today")
    ]
    return (
        texts_of(row),
        facts_of(row) | {"elapsed_s": 0},
        row.word,
        row.duration_s(NOW),
        len(sorted_by),
        found,
    )


def unread(*_: object) -> Any:
    raise AssertionError("a journal was read")


def run_in(folder: Path, name: str, *, over: bool = True) -> RunPaths:
    """A short run, with a run.json whose arguments hold a secret."""
    run = RunPaths(folder / name)
    run.node().root.mkdir(parents=True)
    write_run_file(run.run_json, job_of(folder, "train.py", "--lr", "3e-4", "--hf-token", SECRET))
    writer = JournalWriter(run.node().journal)
    writer.append(ev.RunStarted(t=1.0, run_id=name, name="train", mode="launched", host="h"))
    writer.append(ev.LaunchIntended(t=2.0, attempt=1, reason="first start", argv=("x", "--lr", "3e-4")))
    writer.append(ev.Progress(t=3.0, attempt=1, step=7, loss=2.5))
    if over:
        writer.append(ev.RunEnded(t=4.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="no"))
    writer.close()
    return run


def steps(*runs: RunPaths) -> list[int | None]:
    return [row.step for row in rows_of(list(runs), {})]


@pytest.mark.parametrize("make", RECORDED)
def test_a_list_says_the_same_of_a_run_that_another_list_has_read(
    make: Callable[[Path], RunPaths], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LEAST_SNAPSHOT_BYTES", 1)
    run = make(tmp_path / "20261121-1412-brave-otter")
    (first,) = rows_of([run], {})
    is_over = first.state.is_over
    assert run.node().snapshot.exists() == is_over, "a run that may continue is its keeper's"
    monkeypatch.setattr(journal, "replay", lambda events, state: state if not list(events) else unread())
    if is_over:
        (again,) = rows_of([run], {})
        assert shown(again) == shown(first)
        assert run.node().snapshot.stat().st_mode & 0o777 == 0o600


def test_a_list_leaves_nothing_in_a_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LEAST_SNAPSHOT_BYTES", 1)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    run = run_in(tmp_path, "20261121-1412-one")
    assert steps(run) == [7]
    assert not run.node().snapshot.exists()


def test_a_journal_that_changed_is_read_whatever_is_kept_of_it(tmp_path: Path) -> None:
    runs = [run_in(tmp_path, f"20261121-1412-{name}") for name in ("longer", "same-size", "replaced", "gone")]
    assert steps(*runs) == [7, 7, 7, 7]
    longer, same, replaced, gone = (run.node().journal for run in runs)
    more = msgspec.json.encode(ev.Progress(t=5.0, attempt=1, step=8))
    longer.write_bytes(longer.read_bytes() + more + b"\n")
    same.write_bytes(same.read_bytes().replace(b'"step":7', b'"step":9'))
    times = replaced.stat()
    other = replaced.with_name("other")
    other.write_bytes(replaced.read_bytes().replace(b'"step":7', b'"step":6'))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(replaced)
    gone.unlink()
    assert steps(*runs) == [8, 9, 6]
    assert steps(*runs) == [8, 9, 6]


def test_of_runs_that_are_over_nothing_is_read_again_and_of_a_live_one_what_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [run_in(tmp_path, f"20261121-1412-r{number}") for number in range(3)]
    live = run_in(tmp_path, "20261121-1500-live", over=False)
    clock = [0.0]
    reader = RunsReader(lambda: [live, *over], monotonic=lambda: clock[0])
    with held(live):
        first = reader.refresh()
        monkeypatch.setattr(run_list, "StateReader", unread)
        clock[0] = READ_S
        assert reader.refresh() is first
        with live.node().journal.open("ab") as journal:
            journal.write(msgspec.json.encode(ev.Progress(t=5.0, attempt=1, step=8)) + b"\n")
        clock[0] = 2 * READ_S
        second = reader.refresh()
        assert second.rows[0].step == 8
        assert all(a is b for a, b in zip(first.rows[1:], second.rows[1:], strict=True))
    clock[0] = 100.0
    reader.refresh()
    assert reader.refresh().rows[0].word == "no_keeper"


@contextmanager
def held(run: RunPaths) -> Iterator[None]:
    """A keeper holds the run's lock."""
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        yield
    finally:
        lock.release()
