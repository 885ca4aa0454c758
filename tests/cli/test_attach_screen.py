"""A screen over a log: it opens on the first events, and what watches the log begins behind it and leaves with it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.cli import observe_target
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.observed_run import ObservedLog, ObservedRun, Target
from supervisor.run import events as ev
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL
from supervisor.views.tui import app
from tests.conftest import wait_until


def begun(tmp_path: Path) -> tuple[RunPaths, Path, ObservedRun]:
    log = tmp_path / "train.log"
    log.write_text("step 1/9 loss: 2.5\n", encoding="utf-8")
    run = RunPaths(tmp_path / "observed-1")
    target = Target(log.name, str(log), (ObservedLog(str(log), log.name),))
    return run, log, ObservedRun(run, target, host="box", clock=Clock())


def last_step(run: RunPaths) -> int | None:
    attempt = read_state(run.node().journal).attempt
    return attempt.last_step if attempt is not None else None


@pytest.mark.parametrize("painted", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_a_log_is_watched_once_the_screen_is_painted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, painted: bool, keep: bool
) -> None:
    """A screen that is left before it is painted leaves a verdict where it is kept."""
    log = tmp_path / "train.log"
    log.write_text("step 1/9 loss: 2.5\n", encoding="utf-8")
    seen: list[RunPaths] = []

    def show(run: RunPaths, *, painted: Callable[[], object], **_: object) -> None:
        state = read_state(run.node().journal)
        assert state.attempt is not None
        assert [rank.stdout for rank in state.attempt.ranks.values()] == [str(log)]
        assert keeper_is_alive(run.node().lock)
        if is_painted:
            painted()
            assert wait_until(lambda: last_step(run) == 1, 60)
        seen.append(run)

    is_painted = painted
    monkeypatch.setattr(app, "run_tui", show)
    monkeypatch.setattr(observe_target, "_keyboard_as_stdin", lambda _: nullcontext(True))
    args = SimpleNamespace(interval=60.0, keep=keep, read_only=False, no_ui=False, json=False)
    assert observe_target.observe(str(log), cast("Any", args), USUAL) == 0
    (run,) = seen
    assert not keeper_is_alive(run.node().lock)
    assert run.root.exists() is keep
    if keep:
        assert read_state(run.node().journal).is_over


@pytest.mark.fault(
    "processes", "a process that watches a log is killed", "its record opens like any other run"
)
def test_a_killed_observer_leaves_a_run_that_opens(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1/9 loss: 2.5\n", encoding="utf-8")
    with log.open("a"):  # somebody writes it
        command = [sys.executable, "-m", "supervisor", "attach", "--no-ui", str(log)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as observer:
            place = Path(os.environ["XDG_STATE_HOME"]) / "stoker" / "observed"
            assert wait_until(lambda: any(last_step(RunPaths(run)) == 1 for run in place.glob("*")), 60)
            observer.send_signal(signal.SIGKILL)
    (run,) = map(RunPaths, place.glob("*"))
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 20)
    assert not read_state(run.node().journal).is_over


@pytest.mark.fault("journal and disk", "the disk fills up while a log is observed", "events are kept")
def test_an_observed_run_waits_for_a_full_disk_as_a_launched_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, observed = begun(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _full)
        observed.ledger.emit(ev.NoteAdded(t=1.0, text="kept", by="me"))
    observed.ledger.emit(ev.NoteAdded(t=2.0, text="and after it", by="me"))
    observed.close()
    found = [
        event.text for event in JournalReader(run.node().journal).read() if isinstance(event, ev.NoteAdded)
    ]
    assert found == ["kept", "and after it"]
    assert read_state(run.node().journal) == observed.ledger.state


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
