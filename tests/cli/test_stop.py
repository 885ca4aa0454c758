"""`stoker stop` where the supervisor process does not answer, and what it refuses. What a keeper answers: test_attach_stop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.cli import stop
from supervisor.cli.main import main
from supervisor.keeper.process import child
from supervisor.run import events as ev
from supervisor.run.control import Request, pending
from supervisor.run.events import RequestKind
from supervisor.run.journal import read_state
from supervisor.run.ownership import KeeperLock, NotRequested
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.sources.processes import ProcessId, identify, is_alive
from tests.cli.conftest import Call
from tests.conftest import wait_until
from tests.integration.harness import STOKER, environment, only_run, stoker, wait_for_step
from tests.keeper.fakes import run_in
from tests.keeper.runs import INTENDED, RUNS, T, append

STARTED = ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host=socket.gethostname())
OVER = ev.RunEnded(t=T, outcome=ev.Outcome.STOPPED, exit_code=5, reason="stopped")
SLEEPS = "import sys, time; sys.stdin.readline(); time.sleep(600)"


def run_of(tmp_path: Path, *facts: ev.Event) -> RunPaths:
    run = run_in(tmp_path, *(facts or (STARTED, INTENDED, RUNS)))
    run.control.mkdir()
    return run


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that will stand for the supervisor process."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]) -> RunPaths:
    """A run whose keeper holds its lock and was stopped by a signal; one process of the run lives besides."""
    run = run_of(tmp_path)
    found = identify(holder.pid)
    assert found is not None
    holder.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED, 20)
    monkeypatch.setattr("supervisor.cli.stop.has_keeper", lambda *_: True)
    monkeypatch.setattr("supervisor.run.ownership.keeper_is_alive", lambda *_: True)
    monkeypatch.setattr("supervisor.cli.stop.holder_here", lambda _lock: found)
    monkeypatch.setattr(stop, "SILENT_AFTER_S", 0.05)
    return run


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessId]:
    """A process that is the run's own."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdin=subprocess.PIPE) as process:
        found = identify(process.pid)
        assert found is not None
        monkeypatch.setattr(child, "alive_of", lambda *_: [found] if process.poll() is None else [])
        yield found
        process.kill()


@pytest.mark.parametrize("flags", [[], ["--without-keeper"], ["--now"]])
def test_processes_of_a_frozen_keeper_are_left_alone_unless_it_was_asked_for(
    frozen: RunPaths,
    rank: ProcessId,
    holder: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    assert main(["stop", "--timeout", "0.5", *flags, str(frozen.root)]) == 1
    why, told = capsys.readouterr().err.splitlines()
    assert why.startswith(f"run-1: its supervisor process (pid {holder.pid}) has not answered for 0 s: ")
    assert f"`kill -CONT {holder.pid}` lets it continue" in why
    assert told.endswith("has not ended after 0 s: `stoker stop --now --without-keeper run-1`")
    assert is_alive(rank)
    (request,) = pending(frozen.control)
    assert isinstance(request, Request)
    assert request.kind is (RequestKind.STOP_NOW if "--now" in flags else RequestKind.STOP)


def test_what_does_not_die_is_named(
    frozen: RunPaths, rank: ProcessId, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(child, "kill_all", lambda _processes: None)
    monkeypatch.setattr(stop, "KILL_S", 0.3)
    code, _, err = call("stop --now --without-keeper", frozen.root)
    last = err.splitlines()[-1]
    assert code == 1
    assert last.startswith("stoker stop: after 0 s there live still: ")
    assert str(rank.pid) in last


def test_a_frozen_keeper_with_nothing_besides(
    frozen: RunPaths, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(child, "alive_of", lambda *_: [])
    code, _, err = call("stop --now --without-keeper", frozen.root)
    assert code == 1
    assert err.endswith("stoker stop: no process of the run lives besides it\n")


@pytest.mark.parametrize("lock_says", ["nobody", "another", "a keeper that is not frozen"])
def test_a_silent_keeper_is_gone_round_whatever_its_lock_says(
    frozen: RunPaths,
    rank: ProcessId,
    holder: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lock_says: str,
) -> None:
    """The name in the lock file can be rewritten, and a keeper can hang without being stopped."""
    if lock_says == "nobody":
        monkeypatch.setattr("supervisor.cli.stop.holder_here", lambda _lock: None)
    elif lock_says == "another":
        forged = ProcessId(1, 0.1)
        monkeypatch.setattr("supervisor.cli.stop.holder_here", lambda _lock: forged)
    else:
        holder.send_signal(signal.SIGCONT)
        assert wait_until(lambda: psutil.Process(holder.pid).status() != psutil.STATUS_STOPPED, 20)
    assert main(["stop", "--now", "--timeout", "0.5", str(frozen.root)]) == 1
    assert is_alive(rank)
    assert main(["stop", "--now", "--without-keeper", str(frozen.root)]) == 0
    said = capsys.readouterr()
    assert str(rank.pid) in said.err
    assert "run-1: its processes are ended" in said.out
    assert not is_alive(rank)


def test_a_run_of_another_machine_is_stopped_there(tmp_path: Path, call: Call) -> None:
    far = ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host="far-away")
    run = run_of(tmp_path, far, INTENDED, RUNS)
    code, _, err = call("stop", run.root)
    assert code == 3
    assert "run-1 has no keeper: none that is seen from here: it ran on far-away: stop it there" in err


def test_a_control_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path)
    lock = KeeperLock(run.node().lock, start_time=1.0)

    def denied(*_args: object, **_named: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisor.cli.stop.ask", denied)
    try:
        assert main(["stop", str(run.root)]) == 1
    finally:
        lock.release()
    assert capsys.readouterr().err == f"stoker stop: {run.control}: Permission denied: not your run?\n"


# -- stops that come as the run ends ---------------------------------------------------------------


@pytest.mark.fault(
    "processes", "a stop while the run ends by itself", "the stop succeeds, because the run has ended"
)
@pytest.mark.parametrize("answered", [True, False], ids=["the keeper refused it", "the keeper had left"])
def test_a_stop_of_a_run_that_ends_meanwhile_succeeds(
    answered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path)
    lock = KeeperLock(run.node().lock, start_time=1.0)

    def late(*_args: object, **_named: object) -> str:
        refused = ev.RequestRefused(t=T, request_id="late", request="stop", by="me", reason="the run is over")
        append(run, OVER, *((refused,) if answered else ()))
        if not answered:
            raise NotRequested("the supervisor process is gone: nobody would do it")
        return "late"

    monkeypatch.setattr("supervisor.cli.stop.ask", late)
    try:
        assert main(["stop", str(run.root)]) == 0
    finally:
        lock.release()
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{run.root} ended: stopped: stopped\n", "")


@pytest.mark.fault(
    "journal and disk", "a stop when no request can be written", "the keeper is asked by a signal"
)
def test_a_stop_that_cannot_be_written_is_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    run = run_of(tmp_path)
    found = identify(holder.pid)
    monkeypatch.setattr("supervisor.cli.stop.holder_here", lambda _lock: found)
    lock = KeeperLock(run.node().lock, start_time=1.0)

    def full(*_args: object, **_named: object) -> str:
        append(run, OVER)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("supervisor.cli.stop.ask", full)
    try:
        assert main(["stop", str(run.root)]) == 0
    finally:
        lock.release()
    assert holder.wait(20) == -signal.SIGTERM


@pytest.fixture
def long_job(tmp_path: Path) -> Path:
    """A folder with a script that trains for a minute, one that fails so that it is restarted."""
    (tmp_path / "train.py").write_text(
        "import time\nfor step in range(1, 600):\n    print('step', step, 'loss 2.5', flush=True)\n    time.sleep(0.1)\n",
        encoding="utf-8",
    )
    return tmp_path


DETACHED = ("run", "--detach", "--no-check", "--python", sys.executable, "--self-resuming", "--")


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.fault("processes", "20 `stop` at once", "all of them succeed")
def test_twenty_stops_at_once_all_succeed(long_job: Path) -> None:
    assert stoker(*DETACHED, sys.executable, "train.py", cwd=long_job).code == 0
    run = only_run(long_job)
    wait_for_step(run, 2)
    stops = [
        subprocess.Popen([*STOKER, "stop", run.run_id], cwd=long_job, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(20)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[1] for process in stops]
    assert [process.returncode for process in stops] == [0] * 20, said
    assert len(read_state(run.node().journal).attempts) == 1


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.fault(
    "processes",
    "a stop at a random moment around the death of launcher or command",
    "the stop is not lost, and nothing is launched again",
)
@pytest.mark.parametrize("seed", range(2))
def test_a_stop_while_the_launcher_dies_is_not_lost(long_job: Path, seed: int) -> None:
    chance = random.Random(seed)
    assert stoker(*DETACHED, sys.executable, "train.py", cwd=long_job).code == 0
    run = only_run(long_job)
    wait_for_step(run, 2)
    pids = json.loads((run.node().attempt(1).root / "pid").read_bytes())
    victim = pids[chance.choice(["pid", "launcher_pid"])]
    delay_s = chance.uniform(-0.3, 0.6)
    if delay_s < 0:
        os.kill(victim, signal.SIGKILL)
    with subprocess.Popen([*STOKER, "stop", run.run_id], cwd=long_job, env=environment()) as stopping:
        if delay_s >= 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                stopping.wait(delay_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        assert stopping.wait(120) == 0
    state = read_state(run.node().journal)
    assert isinstance(state.condition, Finished)
    assert state.condition.outcome is ev.Outcome.STOPPED
    assert len(state.attempts) == 1
