"""Processes whose parent dies are found, ended and never joined by a second attempt; after exit 0 nobody is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.keeper.process.detach import handover
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from supervisor.run.state import Finished, HeldOpen, Running
from supervisor.sources.processes import ProcessId, identify, is_alive
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    SCRIPTS,
    STOKER,
    background,
    detached,
    environment,
    facts,
    run_headless,
    state_of,
    stoker,
    wait_for_run,
    wait_for_state,
)

FAMILY = str(SCRIPTS / "family.py")


@pytest.fixture
def stranger() -> Iterator[ProcessId]:
    """A process that is none of the run's."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield not_none(identify(process.pid))
        process.kill()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Path]:
    """The folder to which the job's processes write; those that are left are killed."""
    folder = tmp_path / "family"
    folder.mkdir()
    yield folder
    for pid in alive_in(folder):
        os.kill(pid, signal.SIGKILL)


def as_command(folder: Path) -> list[str]:
    return ["--", sys.executable, FAMILY, str(folder), "2"]


def alive_in(folder: Path, attempt: int | None = None) -> list[int]:
    """Those of the job's processes that live, by the files they wrote."""
    pids = [int(p.name.partition("-")[2]) for p in folder.glob(f"{attempt or '[0-9]*'}-*")]
    return [pid for pid in pids if identify(pid) is not None]


def pid_of(run: RunPaths, attempt: int = 1, key: str = "pid") -> int:
    path = run.node().attempt(attempt).root / "pid"
    assert wait_until(path.exists, 60)
    return int(json.loads(path.read_bytes())[key])


@pytest.mark.parametrize("victim", ["pid", pytest.param("launcher_pid", marks=pytest.mark.thorough)])
@pytest.mark.fault(
    "processes",
    "a job's parent is killed and leaves workers, daemons and renamed children",
    "all are ended before the next attempt starts",
)
def test_when_a_parent_is_killed_its_orphans_are_ended_before_the_next_attempt(
    family: Path, tmp_path: Path, victim: str
) -> None:
    flags = ("--max-retries", "1", "--restart-from-scratch", "--grace", "2")
    with background("run", "--no-ui", *flags, *as_command(family), cwd=tmp_path) as keeper:
        run = wait_for_run(tmp_path)
        pid = pid_of(run, key=victim)
        assert wait_until(lambda: len(alive_in(family, 1)) >= 3, 60)
        os.kill(pid, signal.SIGKILL)
        if victim == "launcher_pid":
            # Training continues; what it left goes to the keeper. The launcher must be gone by then: woken by its
            # own SIGKILL it would still reap a child that is dead already, and write down nothing.
            assert wait_until(lambda: identify(pid) is None, 30)
            os.kill(pid_of(run), signal.SIGKILL)
        second = run.node().attempt(2).root / "pid"
        assert wait_until(second.exists, 90)
        assert not alive_in(family, 1), "the first attempt's processes live beside the second's"
        assert wait_until(lambda: len(alive_in(family, 2)) >= 2, 60)
        done = stoker("stop", run.run_id, "--now", cwd=tmp_path)
        assert done.code == 0, done.err
        assert keeper.wait(60) == 5
    assert wait_until(lambda: not alive_in(family), 10), "left after stop"
    assert not (family / "overlap").exists(), (family / "overlap").read_text(encoding="utf-8")


@pytest.mark.e2e
@pytest.mark.fault(
    "processes",
    "the keeper is stopped (SIGSTOP) and answers no request",
    "`stop --now` says so, and `stop --now --without-keeper` can end the run's own, checked processes itself",
)
def test_a_frozen_keeper_is_named_and_its_run_can_be_ended_without_it(
    family: Path, tmp_path: Path, stranger: ProcessId
) -> None:
    job = ("--nproc-per-node", "2", FAMILY, str(family), "2")
    with background("run", "--no-ui", *job, cwd=tmp_path) as keeper:
        run = wait_for_run(tmp_path)
        assert wait_until(lambda: len(alive_in(family, 1)) >= 2, 60)
        keeper.send_signal(signal.SIGSTOP)
        try:
            refused = stoker("stop", "--now", "--timeout", "15", run.run_id, cwd=tmp_path)
            assert refused.code == 1
            for word in (f"pid {keeper.pid}", f"kill -CONT {keeper.pid}", "--without-keeper"):
                assert word in refused.err
            assert len(alive_in(family, 1)) >= 2, "nobody agreed to it"
            done = stoker("stop", "--now", "--without-keeper", run.run_id, cwd=tmp_path)
            assert done.code == 0, done.err
            assert wait_until(lambda: not alive_in(family), 10)
            assert is_alive(stranger)
        finally:
            keeper.send_signal(signal.SIGCONT)
        # The request was not lost: nothing is started again.
        assert keeper.wait(60) == 5
    assert state_of(run).is_over
    assert not run.node().attempt(2).root.exists()


@pytest.mark.parametrize("flag", [[], pytest.param(["--now"], marks=pytest.mark.thorough)])
@pytest.mark.fault(
    "processes",
    "a job's daemons left its process group, or its environment cannot be read",
    "a stop ends them too",
)
def test_a_stop_ends_daemons_and_children_without_an_environment(
    family: Path, tmp_path: Path, flag: list[str]
) -> None:
    run = detached(tmp_path, "--grace", "2", *as_command(family))
    started = wait_until(lambda: len(alive_in(family)) == 7, 60)
    assert started, "the command, and two workers with two children each"
    assert stoker("stop", run.run_id, *flag, cwd=tmp_path).code == 0
    assert not alive_in(family)


@pytest.mark.fault(
    "processes", "a job ends with 0 and leaves processes behind", "they are listed and left alone"
)
def test_after_exit_0_what_is_left_is_listed_and_lives(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, file=open('left', 'w'))\n"
    )
    done, run, state = run_headless("--", sys.executable, "-c", code, cwd=tmp_path)
    pid = int((tmp_path / "left").read_text(encoding="utf-8"))
    try:
        assert done.code == 0, done.err
        assert identify(pid) is not None, "it may be meant to stay"
        (left,) = [fact for fact in facts(run) if isinstance(fact, ev.ProcessesLeft)]
        assert left.why is ev.LeftWhy.AFTER_SUCCESS
        assert [process.pid for process in left.processes] == [pid]
        assert f"left running after exit 0: {pid}" in done.out
        assert state.attempts[0].left == (left,)
        assert not any(isinstance(fact, ev.StopIntended) for fact in facts(run))
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.e2e
@pytest.mark.fault("processes", "a job starts a stoker run of its own", "the inner run is not touched")
def test_a_stoker_run_within_a_job_is_left_alone(tmp_path: Path) -> None:
    inner = [*STOKER, "run", "--no-ui", "--runs-dir", str(tmp_path / "inner"), "--", "sleep", "600"]
    outer = detached(tmp_path, "--grace", "1", "--", "sh", "-c", f"{' '.join(inner)} & wait")
    inner_dir = tmp_path / "inner"
    nested: RunPaths | None = None
    try:
        assert wait_until(lambda: any(inner_dir.glob("*/nodes/0/attempts/1/pid")), 60)
        nested = RunPaths(next(p for p in inner_dir.iterdir() if not p.is_symlink()))
        wait_for_state(nested, Running)
        sleeper = not_none(identify(pid_of(nested)))
        assert stoker("stop", outer.run_id, cwd=tmp_path).code == 0
        assert is_alive(sleeper)
        assert keeper_is_alive(nested.node().lock)
        left = [fact for fact in facts(outer) if isinstance(fact, ev.ProcessesLeft)]
        assert [fact.why for fact in left] == [ev.LeftWhy.NESTED]
    finally:
        if nested is not None:
            stoker("stop", nested.run_id, "--runs-dir", str(inner_dir), "--now", cwd=tmp_path)


@pytest.mark.e2e
@pytest.mark.fault(
    "processes",
    "only the journal claims that a process belongs to the run",
    "the process is listed, never signaled",
)
def test_what_only_the_journal_names_is_listed_and_neither_killed_nor_waited_for(
    family: Path, tmp_path: Path
) -> None:
    """Keeper, launcher and command are killed; a rank without an environment cannot be told from a stranger."""
    script = tmp_path / "rank.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import family, os, time\n"
        f"open({str(family)!r} + '/1-%d' % os.getpid(), 'w').close()\n"
        "time.sleep(2); family.overwrite_environment(); time.sleep(600)\n",
        encoding="utf-8",
    )
    start = f"LOCAL_RANK=0 RANK=0 {sys.executable} {script} & wait"
    run = detached(tmp_path, "--grace", "1", "--", "sh", "-c", start)
    found = lambda: any(r.pid for a in state_of(run).attempts for r in a.ranks.values())
    assert wait_until(found, 60)
    state = state_of(run)
    rank = not_none(state.attempts[0].ranks[0].pid)
    environ = Path(f"/proc/{rank}/environ")
    assert wait_until(lambda: not environ.read_bytes().strip(b"\0"), 30)
    for pid in (not_none(state.keeper_pid), pid_of(run, key="launcher_pid"), pid_of(run)):
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 10)
    # A keeper that replaces the dead one at once, as none would be started by hand: nothing known to be the run's lives.
    adopter = subprocess.run(
        [sys.executable, "-m", "supervisor.keeper", str(run.root)],
        input=handover(read_run_file(run.run_json), ()),
        env=environment(),
        timeout=60,
        check=False,
    )
    assert adopter.returncode == 6, "how it ended nobody could learn"
    assert identify(rank) is not None
    left = [fact for fact in facts(run) if isinstance(fact, ev.ProcessesLeft)]
    assert [(fact.why, fact.processes[0].pid) for fact in left] == [(ev.LeftWhy.UNKNOWN, rank)]


@pytest.mark.e2e
@pytest.mark.fault(
    "processes", "a process of the last attempt cannot be ended", "no next attempt starts while it is alive"
)
def test_nothing_is_launched_beside_a_process_that_cannot_be_ended(tmp_path: Path) -> None:
    """A stopped tracee cannot be ended here; a process that bears the mark and appears between two attempts stands for it."""
    run = detached(tmp_path, "--", "sh", "-c", "exit 3")
    wait_for_state(run, HeldOpen)
    survivor = subprocess.Popen(["sleep", "600"], env={**os.environ, "STOKER_RUN_DIR": str(run.root)})
    try:
        control.send(run.control, RequestKind.RESTART)
        assert wait_until(lambda: str(survivor.pid) in getattr(state_of(run).condition, "reason", ""), 30)
        state = wait_for_state(run, HeldOpen)
        assert len(state.attempts) == 1
        survivor.kill()
        survivor.wait()
        control.send(run.control, RequestKind.RESTART)
        assert wait_until(lambda: len(state_of(run).attempts) == 2, 30)
        wait_for_state(run, HeldOpen)
    finally:
        survivor.kill()
        survivor.wait()
        assert stoker("stop", run.run_id, cwd=tmp_path).code == 0
    assert isinstance(state_of(run).condition, Finished)
