"""The list of runs reads each journal once, and shows no secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.regular import Mark, mark_of
from supervisor.run.runfile import write_run_file
from supervisor.views.model import run_list
from supervisor.views.model.run_list import READ_S, RunsReader, rows_of
from tests.keeper.fakes import job_of

SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


def unread(_path: Path) -> Any:
    raise AssertionError("a journal was read")


def run_in(folder: Path, name: str, *, over: bool = True) -> RunPaths:
    """A short run, with a run.json whose arguments hold a secret."""
    run = RunPaths(folder / name)
    run.node().root.mkdir(parents=True)
    write_run_file(run.run_json, job_of(folder, "train.py", "--lr", "3e-4", "--hf-token", SECRET))
    journal = JournalWriter(run.node().journal)
    journal.append(ev.RunStarted(t=1.0, run_id=name, name="train", mode="launched", host="h"))
    journal.append(ev.LaunchIntended(t=2.0, attempt=1, reason="first start", argv=("x", "--lr", "3e-4")))
    journal.append(ev.Progress(t=3.0, attempt=1, step=7, loss=2.5))
    if over:
        journal.append(ev.RunEnded(t=4.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="no"))
    journal.close()
    return run


def test_runs_that_are_over_cost_a_tick_nothing_and_a_live_one_what_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [run_in(tmp_path, f"20261121-1412-r{number}") for number in range(30)]
    live = run_in(tmp_path, "20261121-1500-live", over=False)
    clock, looked = [0.0], list[str]()
    reader = RunsReader(lambda: [live, *over], monotonic=lambda: clock[0])
    with held(live):
        first = reader.refresh()
        assert [row.live for row in first.rows] == [True] + [False] * 30

        def look(path: Path) -> Mark | None:
            looked.append(str(path))
            return mark_of(path)

        monkeypatch.setattr(run_list, "mark_of", look)
        monkeypatch.setattr(run_list, "StateReader", unread)
        assert reader.refresh() is first
        assert not looked, "not more than once a second"
        clock[0] = READ_S
        assert reader.refresh() is first
        assert looked == [str(live.node().journal)]
        with live.node().journal.open("ab") as journal:
            journal.write(msgspec.json.encode(ev.Progress(t=5.0, attempt=1, step=8)) + b"\n")
        clock[0] = 2 * READ_S
        second = reader.refresh()
        assert second.rows[0].step == 8
        assert all(a is b for a, b in zip(first.rows[1:], second.rows[1:], strict=True))
    clock[0] = 100.0
    reader.refresh()
    assert reader.refresh().rows[0].word == "no_keeper"
    looked.clear()
    clock[0] += READ_S
    reader.refresh()
    assert not looked, "one without a keeper costs nothing either"


@contextmanager
def held(run: RunPaths) -> Iterator[None]:
    """A keeper holds the run's lock."""
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        yield
    finally:
        lock.release()


def test_a_list_shows_no_secrets(tmp_path: Path) -> None:
    (row,) = rows_of([run_in(tmp_path, "20261121-1412-one")], {})
    assert (row.word, row.command) == ("failed", ("train.py", "--lr", "3e-4", "--hf-token", "<redacted>"))
