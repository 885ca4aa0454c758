"""A keeper that adopts a journal in each condition it can have been left in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.keeper.loop import Keeper
from supervisor.keeper.process.child import LAUNCHER
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome, RequestKind, StopWhy
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import RunFile
from supervisor.run.series import JOB_KEY, METRICS, SeriesReader, SeriesWriter
from supervisor.sources.processes import identify, is_alive, send_signal
from tests.conftest import not_none, wait_until
from tests.keeper.fakes import SLEEP, STUBBORN, facts_of, job_of, run_in
from tests.keeper.runs import (
    INTENDED,
    RUNS,
    STARTED,
    WAITS,
    T,
    append,
    carry,
    child_in,
    journalled,
    outcome,
)

pytestmark = pytest.mark.timeout(90)


@pytest.mark.fault("processes", "the keeper dies before the launch", "the adopting keeper launches, once")
def test_adopted_before_its_launch_it_is_launched(tmp_path: Path) -> None:
    code, state = carry(run_in(tmp_path, STARTED), job_of(tmp_path))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))


@pytest.mark.fault(
    "journal and disk",
    "the journal is torn in its first line",
    "the run continues, and its beginning is recorded again",
)
@pytest.mark.parametrize("torn", [b"", b'{"kind":"run_sta', bytes(300)], ids=["empty", "half", "zeros"])
def test_a_journal_torn_in_its_first_line_is_begun_again(tmp_path: Path, torn: bytes) -> None:
    run = run_in(tmp_path)
    run.node().journal.write_bytes(torn)
    code, state = carry_beside(run, job_of(tmp_path))
    assert (code, outcome(state), state.mode) == (0, (Outcome.SUCCEEDED, 1), "launched")


@pytest.mark.fault(
    "processes",
    "the launcher, alone or with the keeper, is killed before it has recorded its command",
    "the command is ended and blocks no further attempt",
)
@pytest.mark.parametrize(
    ("keeper_lives", "ended"), [(True, (Outcome.FAILED, 1)), (False, (Outcome.SUCCEEDED, 2))]
)
def test_a_command_that_nobody_wrote_down_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeper_lives: bool, ended: tuple[Outcome, int]
) -> None:
    monkeypatch.setattr("supervisor.keeper.attempt_monitor.ADOPT_WAIT_S", 0.1)
    run, orphans, real = RunPaths(tmp_path / "run-1"), list[int](), subprocess.Popen

    def orphan() -> None:
        env = {**os.environ, "STOKER_RUN_DIR": str(run.root)}
        process = real([sys.executable, "-c", SLEEP], env=env, start_new_session=True)
        process.returncode = 0  # the keeper ends it: a Popen complains when it is let go of alive
        orphans.append(process.pid)

    def killed_once(argv: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if str(LAUNCHER) not in argv or orphans:
            return real(argv, **kwargs)
        orphan()
        return real([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], **kwargs)

    monkeypatch.setattr(subprocess, "Popen", killed_once)
    if not keeper_lives:
        run_in(tmp_path, STARTED, INTENDED)
        orphan()
    _, state = carry(run, job_of(tmp_path))
    assert outcome(state) == ended
    assert orphans
    assert not any(map(identify, orphans))


@pytest.mark.fault(
    "processes",
    "the keeper dies between the launch and its journal line",
    "the child is found; nothing is launched twice",
)
@pytest.mark.parametrize("facts", [(STARTED,), (STARTED, INTENDED)])
def test_a_launch_that_the_journal_missed_is_not_made_twice(
    tmp_path: Path, facts: tuple[ev.Event, ...]
) -> None:
    run = run_in(tmp_path, *facts)
    child = child_in(run, "print('step 1 loss 2.0'); print('step 2 loss 1.0')")
    series = SeriesWriter(run.node().series)
    series.append(METRICS, T, JOB_KEY, 1, {"step": 1.0, "loss": 2.0})
    series.close()
    code, state = carry(run, job_of(tmp_path, "no-such-program"))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))
    samples = SeriesReader(run.node().series, METRICS).read()
    assert [sample.v["step"] for sample in samples] == [1, 2], (
        "what an earlier keeper wrote is not written again"
    )
    assert state.attempts[0].pid == child.pid.pid
    assert wait_until(lambda: child.poll() is not None, 5)


def test_adopted_after_the_child_had_failed_its_code_is_known(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS)
    child = child_in(run, "raise SystemExit(3)")
    assert wait_until(lambda: child.poll() is not None, 10)
    code, state = carry(run, job_of(tmp_path))
    assert (code, state.attempts[0].exit_code) == (1, 3)


@pytest.mark.timeout(30)
@pytest.mark.fault(
    "processes",
    "a stop right after an adoption; the command has succeeded and left a process",
    "the stop is answered at once, and the run has succeeded",
)
@pytest.mark.parametrize("request_kind", [RequestKind.STOP, RequestKind.STOP_NOW, None], ids=str)
def test_a_stop_is_answered_where_the_command_had_ended_well_and_left_a_process(
    tmp_path: Path, request_kind: RequestKind | None
) -> None:
    """The stop asks for the exit before the first look does. None: it comes as a SIGTERM."""
    leaves = (
        "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    )
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, leaves)
    append(run, journalled(child))
    assert wait_until(run.node().attempt(1).exit.exists, 10)
    left = not_none(identify(int(run.node().attempt(1).agent_log.read_text())))
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    try:
        if request_kind is None:
            keeper._control._signals.put(signal.SIGTERM)
        else:
            control.send(run.control, request_kind)
        assert keeper.run_to_end() == 0
        assert is_alive(left), "after exit 0 it may be meant to stay"
        assert not list(run.control.iterdir())
    finally:
        keeper.close()
        send_signal(left, signal.SIGKILL)


def test_after_a_boot_a_process_with_the_old_pid_is_a_stranger(tmp_path: Path) -> None:
    """Its pid and start time may come again: only the exit file is believed, and nobody is signalled."""
    stranger = child_in(run := run_in(tmp_path, STARTED, INTENDED), SLEEP)
    before = ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="0", boot_id="another boot")
    append(run, before, journalled(stranger))
    try:
        code, state = carry_beside(run, job_of(tmp_path))
        assert (code, outcome(state)) == (6, (Outcome.LOST, 1))
        assert is_alive(stranger.pid), "it was never ours to end"
    finally:
        send_signal(stranger.pid)
        assert wait_until(lambda: stranger.poll() is not None, 10)


def carry_beside(run: RunPaths, record: RunFile) -> tuple[int, st.RunState]:
    """As `carry`, with a process of the test's own alive beside it."""
    keeper = Keeper(run, record, env=os.environ)
    try:
        return keeper.run_to_end(), keeper.state
    finally:
        keeper.close()


@pytest.mark.fault(
    "processes", "a reboot: no process of the run is left", "the run is lost (exit 6) until `stoker continue`"
)
def test_a_run_of_which_nothing_is_left_is_lost(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS)
    code, state = carry(run, job_of(tmp_path))
    assert (code, outcome(state)) == (6, (Outcome.LOST, 1))


@pytest.mark.fault("processes", "the keeper dies in the middle of a stop", "the stop continues where it was")
def test_adopted_while_stopping_the_stop_goes_on(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, STUBBORN)
    intent = ev.StopIntended(t=T, attempt=1, why=StopWhy.REQUEST, by="kim", grace_s=0.3)
    append(run, journalled(child), intent)
    code, state = carry(run, job_of(tmp_path))
    assert (code, outcome(state)) == (5, (Outcome.STOPPED, 1))
    assert len([f for f in facts_of(run) if isinstance(f, ev.StopIntended)]) == 1
    assert wait_until(lambda: child.poll() is not None, 5)


@pytest.mark.parametrize("known", range(5))
@pytest.mark.fault(
    "processes",
    "the keeper dies between an attempt's end and the next launch",
    "verdict, decision and launch are each made once",
)
def test_adopted_between_end_and_relaunch_each_step_is_made_once(tmp_path: Path, known: int) -> None:
    due = ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0)
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *(*WAITS[:3], due)[:known])
    code, state = carry(run, job_of(tmp_path))
    kinds = [type(fact) for fact in facts_of(run) if getattr(fact, "attempt", 0) == 1]
    for kind in (ev.AttemptEnded, ev.Diagnosed, ev.Decided):
        assert kinds.count(kind) == 1
    if known >= 3:
        assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 2))
    else:
        assert len(state.attempts) == 1


@pytest.mark.fault(
    "processes", "the keeper dies after it carried out a request", "the request is not carried out again"
)
def test_what_a_dead_keeper_had_answered_is_not_done_again(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *WAITS)
    run.control.mkdir()
    done = control.send(run.control, RequestKind.NOTE, args=control.RequestArgs(text="hello"))
    append(run, ev.RequestDone(t=T, request_id=done, request=RequestKind.NOTE, by="kim"))
    (run.control / "folder.json").mkdir()
    (run.control / "half.json").write_text("{", encoding="utf-8")
    last = control.send(run.control, RequestKind.STOP)
    code, state = carry(run, job_of(tmp_path))
    assert code == 5
    assert state.answered[last] == "done"
    assert {"folder", "half"} <= set(state.answered)
    assert not any(isinstance(f, ev.NoteAdded) for f in facts_of(run))
    assert [p.name for p in run.control.iterdir()] == ["folder.json"]
