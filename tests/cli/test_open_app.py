"""What is said once the app is left, with which exit code; the app itself is stood in for."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import open_app
from supervisor.cli.common import WITH_LOG
from supervisor.keeper.process import takeover
from supervisor.keeper.process.child import own_identity
from supervisor.run import events as ev
from supervisor.run.ownership import KeeperLock, Offer
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass
from supervisor.views.appearance import USUAL
from tests.keeper.fakes import job_of, own_run_in, verdict_of
from tests.keeper.runs import INTENDED, RUNS, WAITS, T

STARTED = ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host=socket.gethostname())
OBSERVED = ev.RunStarted(t=T, run_id="run-1", name="x.log", mode="observed", host=socket.gethostname())
HOLD = Decision(DecisionKind.HOLD, "it stays")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the app is opened with."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(
        open_app, "load_app", lambda: lambda run, **named: found.append({"run": run, **named})
    )
    return found


def left(run: RunPaths, env: Mapping[str, str] | None = None, *, read_only: bool = False) -> int:
    return open_app.show(run, read_only=read_only, env=env or os.environ, appearance=USUAL)


def held(failure: FailureClass, code: int | None = None) -> tuple[ev.Event, ...]:
    return (
        ev.AttemptEnded(t=T, attempt=1, exit_code=1),
        ev.Diagnosed(t=T, attempt=1, verdict=verdict_of(failure)),
        ev.Decided(t=T, attempt=1, decision=replace(HOLD, exit_code=code)),
        ev.Held(t=T, attempt=1, reason="it stays", until=4e9),
    )


@pytest.mark.parametrize("last", [RUNS, ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=1, reason="x")])
def test_of_a_run_directory_that_is_gone_nothing_is_offered(
    last: ev.Event,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, last)
    monkeypatch.setattr(open_app, "load_app", lambda: lambda run, **_: shutil.rmtree(run.root))
    assert left(run) == 0
    assert capsys.readouterr().out == f"{run.root}: the run directory is gone\n"


def test_a_finished_run_gives_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[dict[str, Any]]
) -> None:
    over = ev.RunEnded(t=T, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="too \x1b[31moften")
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS, over)
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert left(run, env) == 4
    said = capsys.readouterr().out
    assert said == "run-1: gave up: too \\x1b[31moften\n", "no escapes of a folder reach the terminal"
    (given,) = opened
    assert (given["run"], given["read_only"], given["appearance"]) == (run, False, USUAL)
    assert given["adopter"] is not None
    left(run, env, read_only=True)
    assert opened[1]["read_only"]
    assert opened[1]["adopter"] is None, "who may send nothing takes nothing over"


@pytest.mark.parametrize(
    ("facts", "keeper", "said", "code"),
    [
        ((), True, "training continues; come back with: stoker attach run-1", 0),
        (WAITS, True, "the next attempt starts by itself; come back with: stoker attach run-1", 0),
        (held(FailureClass.CODE_ERROR), True, "the run ends in half a minute unless somebody looks; come back with: stoker attach run-1", 1),
        (held(FailureClass.CUDA_OOM), True, "the run keeps waiting for you: nothing trains; come back with: stoker attach run-1", 1),
        (held(FailureClass.CUDA_OOM, 4), True, "the run keeps waiting for you: nothing trains; come back with: stoker attach run-1", 4),
        (
            (), False,
            "its supervisor process is gone: `stoker attach --adopt run-1` takes over what lives of it, `stoker continue run-1` starts the next attempt",
            0,
        ),
    ],
)  # fmt: skip
def test_how_to_come_back_to_what_is_not_over(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    opened: list[dict[str, Any]],
    facts: tuple[ev.Event, ...],
    keeper: bool,
    said: str,
    code: int,
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS, *facts)
    lock = KeeperLock(run.node().lock, start_time=own_identity().start_time) if keeper else None
    try:
        assert left(run) == code
    finally:
        if lock is not None:
            lock.release()
    assert capsys.readouterr().out == f"{said}\n"
    assert len(opened) == 1


def test_a_copy_and_what_was_only_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[dict[str, Any]]
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)
    shutil.copytree(run.root, tmp_path / "copy")
    assert left(RunPaths(tmp_path / "copy")) == 0
    assert (
        capsys.readouterr().out
        == f"copy: this folder is a copy: the run itself lies in {os.path.realpath(run.root)}\n"
    )
    watched = own_run_in(tmp_path / "x", job_of(tmp_path), OBSERVED, INTENDED, RUNS)
    assert left(watched) == 0
    assert capsys.readouterr().out == "run-1: it is no longer watched\n"
    assert len(opened) == 2


def test_a_run_is_taken_over_with_a_console_log_beside_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, env, seen = RunPaths(tmp_path / "run-1"), {"A": "1"}, []
    offer = Offer(("it is over",), ())
    monkeypatch.setattr(takeover, "examine_adoption", lambda _run: (offer, None))
    monkeypatch.setattr(takeover, "adopt", lambda run, env, *, entry: seen.append((run, env, entry)))
    adopter = open_app.adopter(env)
    assert adopter.examine(run) is offer
    adopter.adopt(run)
    assert seen == [(run, env, WITH_LOG)]
