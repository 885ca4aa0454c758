"""An observed run is begun by the screen's process and carried on by the watcher: one writer, and a lock without a gap."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.cli.attaching import observe_target
from supervisor.cli.attaching.watcher_process import Watcher
from supervisor.keeper.base.keeper_clock import SystemClock
from supervisor.keeper.observer import start_observed
from supervisor.keeper.observer.start_observed import ObservedRun
from supervisor.keeper.observer.target import ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.ownership import KeeperLock, LockTaken, keeper_is_alive, read_holder
from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL
from supervisor.views.tui import terminal
from tests.conftest import wait_until


def begun(tmp_path: Path) -> tuple[RunPaths, Path, ObservedRun]:
    log = tmp_path / "train.log"
    log.write_text("step 1/9 loss: 2.5\n", encoding="utf-8")
    run = RunPaths(tmp_path / "observed-1")
    target = Target(log.name, str(log), (ObservedLog(str(log), log.name),))
    return run, log, ObservedRun.fresh(run, target, host="box", clock=SystemClock())


def last_step(run: RunPaths) -> int | None:
    attempt = read_state(run.node().journal).attempt
    return attempt.last_step if attempt is not None else None


def test_a_screen_has_its_logs_before_the_watcher_is_loaded(tmp_path: Path) -> None:
    run, log, observed = begun(tmp_path)
    state = read_state(run.node().journal)
    assert state.attempt is not None
    assert [rank.stdout for rank in state.attempt.ranks.values()] == [str(log)]
    assert state.keeper_pid == os.getpid()
    observed.hand_over()
    with pytest.raises(OSError, match="Bad file descriptor"):  # who handed over writes no more
        observed.emit(ev.KeeperStarted(t=0.0, pid=1, start_time=0.0, version="x"))
    assert keeper_is_alive(run.node().lock), "locked until somebody else has it"
    observed.lock.release()
    assert not keeper_is_alive(run.node().lock)


def test_the_watcher_writes_on_under_the_same_lock(tmp_path: Path) -> None:
    run, log, observed = begun(tmp_path)
    with Watcher(run, str(log), observed, interval_s=60.0) as watcher:
        assert keeper_is_alive(run.node().lock), "held before the watcher has loaded anything"
        with pytest.raises(LockTaken):
            KeeperLock(run.node().lock, start_time=0.0)
        watcher.go()
        assert wait_until(lambda: last_step(run) == 1, 60)
        assert keeper_is_alive(run.node().lock)
        facts = JournalReader(run.node().journal).read()
        keepers = [fact.pid for fact in facts if isinstance(fact, ev.KeeperStarted)]
        assert keepers[0] == os.getpid()
        assert len(keepers) == 2
        holder = read_holder(run.node().lock)
        assert holder is not None
        assert keepers[1] == holder.pid == read_state(run.node().journal).keeper_pid
        assert [type(fact) for fact in facts].count(ev.RankStarted) == 1, "what was begun is not begun again"
        with log.open("a", encoding="utf-8") as writer:
            writer.write("step 2/9 loss: 2.4\n")
        assert wait_until(lambda: last_step(run) == 2, 30)
    assert not keeper_is_alive(run.node().lock)


@pytest.mark.fault("processes", "the watcher of a log is killed", "what it recorded opens like any run")
def test_a_watcher_that_is_killed_leaves_a_run_that_opens(tmp_path: Path) -> None:
    run, log, observed = begun(tmp_path)
    with Watcher(run, str(log), observed, interval_s=60.0) as watcher:
        watcher.process.kill()
        assert wait_until(lambda: not keeper_is_alive(run.node().lock), 20)
    state = read_state(run.node().journal)
    assert state.attempt is not None
    assert not state.is_over


def test_a_screen_that_is_left_before_it_is_painted_leaves_a_verdict_where_it_is_kept(tmp_path: Path) -> None:
    for keep in (False, True):
        (tmp_path / str(keep)).mkdir()
        run, log, observed = begun(tmp_path / str(keep))
        with Watcher(run, str(log), observed, interval_s=60.0, keep=keep):
            pass
        assert not keeper_is_alive(run.node().lock)
        assert read_state(run.node().journal).is_over is keep


def test_a_watcher_that_nobody_tells_to_go_goes_by_itself(tmp_path: Path) -> None:
    run, log, observed = begun(tmp_path)
    with Watcher(run, str(log), observed, interval_s=60.0):
        assert wait_until(lambda: last_step(run) == 1, 60)


@pytest.mark.parametrize(
    ("large_bytes", "order"), [(1 << 20, ["painted", "go"]), (1, ["go", "painted", "go"])]
)
def test_the_verdict_on_a_long_log_does_not_wait_for_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_bytes: int, order: list[str]
) -> None:
    run, log, observed = begun(tmp_path)
    observed.lock.release()
    seen: list[str] = []

    def paint(*_: object, painted: Callable[[], object], **__: object) -> None:
        seen.append("painted")
        painted()

    monkeypatch.setattr(start_observed, "LARGE_BYTES", large_bytes)
    monkeypatch.setattr(terminal, "run_tui", paint)
    monkeypatch.setattr(Watcher, "go", lambda _: seen.append("go"))
    args = SimpleNamespace(interval=60.0, keep=False, read_only=False)
    target = Target(log.name, str(log), (ObservedLog(str(log), log.name),))
    place = RunPaths(run.root.with_name("observed-2"))
    assert observe_target._with_screen(place, str(log), target, cast("Any", args), USUAL) == 0
    assert seen == order


SCREEN = """
import os, sys, time
from pathlib import Path
from supervisor.cli.attaching.watcher_process import Watcher
from supervisor.keeper.observer.start_observed import ObservedRun
from supervisor.keeper.base.keeper_clock import SystemClock
from supervisor.keeper.observer.target import ObservedLog, Target
from supervisor.run.paths import RunPaths
root, log = sys.argv[1:]
run = RunPaths(Path(root))
observed = ObservedRun.fresh(run, Target("x", log, (ObservedLog(log, "x"),)), host="box", clock=SystemClock())
with Watcher(run, log, observed, interval_s=60.0) as watcher:
    print(watcher.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.fault("processes", "a screen that watches a log is killed", "its watcher leaves with it")
def test_a_screen_that_is_killed_takes_its_watcher_along(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1/9 loss: 2.5\n", encoding="utf-8")
    run = RunPaths(tmp_path / "observed-1")
    command = [sys.executable, "-c", SCREEN, str(run.root), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as screen:
        assert screen.stdout is not None
        assert screen.stdout.readline().strip().isdigit()
        screen.send_signal(signal.SIGKILL)
    # At once, while the watcher still loads: it holds the lock until it has come up and sees that nobody looks.
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 60)


@pytest.mark.fault("journal and disk", "the disk fills while a log is only watched", "events are kept")
def test_an_observed_run_waits_for_a_full_disk_as_a_launched_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, observed = begun(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _full)
        observed.emit(ev.NoteAdded(t=1.0, text="kept", by="me"))
    observed.emit(ev.NoteAdded(t=2.0, text="and after it", by="me"))
    observed.hand_over()
    observed.lock.release()
    found = [
        event.text for event in JournalReader(run.node().journal).read() if isinstance(event, ev.NoteAdded)
    ]
    assert found == ["kept", "and after it"]
    assert read_state(run.node().journal) == observed.state


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
