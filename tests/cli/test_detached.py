"""The console's lines beside a detached keeper: where they begin, and what they end with."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.cli import detached
from supervisor.keeper.loop import Keeper
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.views.headless import console
from tests.conftest import wait_until
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import INTENDED, RUNS, STARTED, T, append

OVER = ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=1, reason="s3cret-Tr0ub4dor is bad")


def keeper(*, adopted: bool = False, astray: bool = False) -> Keeper:
    return cast("Keeper", SimpleNamespace(adopted=adopted, astray=astray))


def run_of(tmp_path: Path) -> RunPaths:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)
    run.artifacts.mkdir()
    return run


def lines(run: RunPaths) -> str:
    return "".join(path.read_text() for path in run.artifacts.glob("console-*.log"))


def log_of(run: RunPaths, tmp_path: Path, keeper: Keeper, **env: Any) -> detached.ConsoleLog:
    return detached.ConsoleLog(run, job_of(tmp_path, **env), keeper)


def test_the_story_is_told_where_the_run_has_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    log = log_of(run, tmp_path, keeper(), env=(("MY_PASSWORD", "s3cret-Tr0ub4dor"),))
    append(run, OVER)
    log.finish(ended=True)
    said = lines(run)
    assert "first launch" in said, "a run that ended at once is told from its beginning"
    assert f"directory {run.root}" in said
    assert "s3cret-Tr0ub4dor" not in said, "the job's secrets are hidden"
    assert not any(thread.name.startswith("stoker-console") for thread in threading.enumerate())


@pytest.mark.parametrize(("ended", "astray"), [(False, False), (True, True)])
def test_no_story_where_the_keeper_crashed_or_its_folder_is_gone(
    tmp_path: Path, ended: bool, astray: bool
) -> None:
    run = run_of(tmp_path)
    log_of(run, tmp_path, keeper(astray=astray)).finish(ended=ended)
    assert "first launch" in lines(run)
    assert f"directory {run.root}" not in lines(run)


def test_lines_come_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "BEGIN_S", 0.01)
    run = run_of(tmp_path)
    log = log_of(run, tmp_path, keeper())
    try:
        assert wait_until(lambda: "first launch" in lines(run), 20)
    finally:
        log.finish(ended=False)


def test_a_console_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object, **_named: object) -> None:
        raise RuntimeError("no console")

    monkeypatch.setattr(console, "ConsoleView", broken)
    log_of(run_of(tmp_path), tmp_path, keeper()).finish(ended=True)
    assert "the console log could not be finished" in caplog.text
