"""A keeper from start to end: its exit codes, signals, requests, full disks."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.keeper.loop import Keeper
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.access import control
from supervisor.run.access.lock import LockTaken
from supervisor.run.events import Outcome, RequestKind, StopWhy
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, Precondition
from tests.conftest import wait_until
from tests.keeper.fakes import SLEEP, STUBBORN, facts_of, job_of, run_in
from tests.keeper.runs import (
    AGAIN,
    INTENDED,
    RUNS,
    SAVED,
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


@pytest.mark.parametrize(("program", "code", "how"), [
    (("true",), 0, Outcome.SUCCEEDED),
    ((sys.executable, "-c", "labels = {}; labels['missing']"), 1, Outcome.FAILED),
    (("no-such-program",), 1, Outcome.FAILED),
])  # fmt: skip
def test_a_fresh_run_ends_with_its_code(
    tmp_path: Path, program: tuple[str, ...], code: int, how: Outcome
) -> None:
    run = RunPaths(tmp_path / "run-1")
    got, state = carry(run, job_of(tmp_path, *program))
    assert (got, outcome(state)) == (code, (how, 1))
    kinds = [type(fact) for fact in facts_of(run)]
    assert kinds[0] is ev.RunStarted
    assert kinds[-2:] == [ev.RunEnded, ev.KeeperLeft]
    assert len([kind for kind in kinds if kind is ev.Diagnosed]) >= 1


def test_only_one_keeper_has_a_run(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    with pytest.raises(LockTaken):
        Keeper(run, job_of(tmp_path), env=os.environ)
    keeper.close()
    before = run.node().journal.read_bytes()
    assert before.count(b"run_started") == 1


@pytest.mark.parametrize(("decision", "code", "how"), [
    (None, 1, Outcome.FAILED),
    (Decision(DecisionKind.HOLD, "no"), 1, Outcome.FAILED),
    (Decision(DecisionKind.HOLD, "no", exit_code=4), 4, Outcome.GAVE_UP),
])  # fmt: skip
def test_a_held_run_is_not_held_for_ever(
    tmp_path: Path, decision: Decision | None, code: int, how: Outcome
) -> None:
    decided = [ev.Decided(t=T, attempt=1, decision=decision)] if decision else []
    held = ev.Held(t=T, attempt=1, reason="no", until=T)
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *WAITS[:2], *decided, held)
    got, state = carry(run, job_of(tmp_path, interactive=True))
    assert (got, outcome(state)) == (code, (how, 1))


@pytest.mark.parametrize(("number", "saved", "slurm", "code"), [
    (signal.SIGTERM, True, False, 5),
    (signal.SIGTERM, True, True, 75),
    (signal.SIGTERM, False, True, 5),
    (signal.SIGUSR1, True, False, 75),
    (signal.SIGUSR1, False, False, 5),
    (signal.SIGINT, True, True, 130),
])  # fmt: skip
def test_a_signal_between_attempts_ends_the_run_with_the_right_code(
    tmp_path: Path, number: signal.Signals, saved: bool, slurm: bool, code: int
) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *([SAVED] if saved else []), *WAITS)
    env = {"SLURM_JOB_ID": "7"} if slurm else {}
    got, state = carry(run, job_of(tmp_path), signals=(number,), env=env)
    assert (got, outcome(state)) == (code, (Outcome.STOPPED, 1))


@pytest.mark.parametrize(("number", "times", "code"), [(signal.SIGTERM, 1, 5), (signal.SIGINT, 2, 130)])
def test_a_signal_to_a_live_attempt_ends_it(
    tmp_path: Path, number: signal.Signals, times: int, code: int
) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, SLEEP)
    append(run, journalled(child))
    got, state = carry(run, job_of(tmp_path), signals=(number,) * times)
    assert (got, outcome(state)) == (code, (Outcome.STOPPED, 1))
    steps = [f.step for f in facts_of(run) if isinstance(f, ev.StopStepTaken)]
    assert steps[0] is (ev.StopStep.SIGKILL if times == 2 else ev.StopStep.SIGTERM)
    assert wait_until(lambda: child.poll() is not None, 5)


def test_a_stop_that_comes_as_the_job_has_just_finished_does_not_spoil_it(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, ev.AttemptEnded(t=T, attempt=1, exit_code=0))
    run.control.mkdir()
    request = control.send(run.control, RequestKind.STOP)
    code, state = carry(run, job_of(tmp_path))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))
    assert state.answered == {request: "done"}


@pytest.mark.parametrize("first", [RequestKind.RESTART, None])
def test_who_asks_for_a_stop_gets_one(tmp_path: Path, first: RequestKind | None) -> None:
    """Also while the attempt ends for a restart, or because a rank died."""
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, STUBBORN)
    append(run, journalled(child))
    run.control.mkdir()
    if first is None:
        append(run, ev.StopIntended(t=T, attempt=1, why=StopWhy.RANK_DIED, by="keeper", grace_s=0.5))
    else:
        control.send(run.control, first)
    control.send(run.control, RequestKind.STOP)
    code, state = carry(run, job_of(tmp_path, interactive=True))
    assert (code, outcome(state)) == (5, (Outcome.STOPPED, 1))
    assert set(state.answered.values()) == {"done"}
    assert wait_until(lambda: child.poll() is not None, 5)


def test_a_restart_asked_of_a_run_that_had_died_unseen_is_made(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS)
    run.control.mkdir()
    control.send(run.control, RequestKind.RESTART)
    code, state = carry(run, job_of(tmp_path, interactive=True))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 2))


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (RequestKind.START_NOW, (0, (Outcome.SUCCEEDED, 2))),
        (RequestKind.RESTART, (0, (Outcome.SUCCEEDED, 2))),
        (RequestKind.STOP, (5, (Outcome.STOPPED, 1))),
    ],
)
def test_a_person_need_not_wait_for_what_is_not_shown(
    tmp_path: Path, kind: RequestKind, ends: tuple[int, tuple[Outcome, int]]
) -> None:
    """A launch that waits for a taken port goes on waiting in a keeper that adopts it, until a person decides."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        asks = replace(AGAIN, show_first=(Precondition.PORT,), wait_s=1e9)
        run = run_in(
            tmp_path, STARTED, INTENDED, RUNS, *WAITS[:2], ev.Decided(t=T, attempt=1, decision=asks),
            ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0),
        )  # fmt: skip
        run.control.mkdir()
        record = job_of(tmp_path, interactive=True, master_port=server.getsockname()[1])
        keeper = Keeper(run, record, env=os.environ)
        try:
            for _ in range(3):
                keeper._act()
            assert isinstance(keeper.state.condition, st.Backoff)
            assert keeper.state.waiting is not None
            assert "port" in keeper.state.waiting.text
            control.send(run.control, kind)
            assert (keeper.carry(), outcome(keeper.state)) == ends
        finally:
            keeper.close()


def test_a_restart_is_made_with_what_was_asked_for(tmp_path: Path) -> None:
    run = run_in(
        tmp_path, STARTED, INTENDED, RUNS, *WAITS[:2], ev.Held(t=T, attempt=1, reason="no", until=4e9)
    )
    run.control.mkdir()
    args = control.RequestArgs(
        argv=("-c", "import os; raise SystemExit(0 if os.environ['A'] == '1' else 9)"), env={"A": "1"}
    )
    control.send(run.control, RequestKind.RESTART_WITH, if_attempt=1, args=args)
    code, state = carry(run, job_of(tmp_path, sys.executable, "-c", "raise SystemExit(9)"))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 2))
    assert state.attempts[0].decided_by != "policy"


def test_a_full_disk_costs_facts_never_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper._ledger._journal, "append", full)
    monkeypatch.setattr("supervisor.keeper.planning.launch_plans.write_plan", full)
    try:
        assert keeper.carry() == 0
    finally:
        keeper.close()


def test_a_launch_that_a_full_disk_refuses_is_held_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(subprocess, "Popen", full)
    code, state = carry(RunPaths(tmp_path / "run-1"), job_of(tmp_path))
    assert code == 1
    verdict = state.attempts[0].verdict
    assert verdict is not None
    assert verdict.failure is FailureClass.DISK_FULL


def test_a_keeper_that_leaves_early_leaves_its_child(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, SLEEP)
    append(run, journalled(child))
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    keeper._act()
    keeper.close("the keeper crashed")
    assert child.poll() is None
    state = read_state(run.node().journal)
    assert isinstance(state.condition, st.Running)
    assert state.keeper_left == "the keeper crashed"
    os.kill(child.pid.pid, signal.SIGKILL)
    assert wait_until(lambda: child.poll() is not None, 5)
