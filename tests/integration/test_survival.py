"""Training outlives terminals and keepers; stopping always ends; held runs wait for a person."""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished, HeldOpen
from supervisor.sources.processes import ProcessId, is_alive
from tests.conftest import wait_until
from tests.integration.harness import (
    JOB,
    background,
    detached,
    end_of,
    facts,
    lose_keeper,
    state_of,
    stoker,
    verdict_of,
    wait_for_end,
    wait_for_run,
    wait_for_state,
    wait_for_step,
)
from tests.tiers import first

TWO = ("--python", sys.executable, "--nproc-per-node", "2")


def console_log(run: RunPaths) -> str:
    """The console's lines of all keepers of a run that has ended, once its story is written."""

    def text() -> str:
        files = sorted(run.artifacts.glob("console-*.log"))
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
        return "".join(file.read_text(encoding="utf-8") for file in files)

    assert wait_until(lambda: f"\ndirectory {run.root}\n" in text(), 30), text()
    return text()


@pytest.mark.fault(
    "processes",
    "the keeper is killed with SIGKILL while ranks train",
    "the ranks continue; another keeper adopts the run and its end is recorded",
)
def test_a_killed_keeper_is_replaced_and_the_run_ends_whole(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = detached(tmp_path, *TWO, JOB, "--gate", str(gate), "--steps", "10")
    state = wait_for_step(run, 5)
    ranks = [
        ProcessId(r.pid, r.start_time) for r in state.attempts[0].ranks.values() if r.pid and r.start_time
    ]
    assert len(ranks) == 2
    lose_keeper(run)
    assert all(is_alive(rank) for rank in ranks), "ranks must outlive their keeper"
    adopted = stoker("attach", run.run_id, "--adopt", cwd=tmp_path)
    assert adopted.code == 0, adopted.err
    assert keeper_is_alive(run.node().lock)
    gate.touch()
    (attempt,) = wait_for_end(run).attempts
    assert (attempt.exit_code, attempt.last_step) == (0, 10)
    steps = [f.step for f in facts(run) if isinstance(f, ev.Progress) and f.step is not None]
    assert steps == sorted(steps), "what was read twice must not be journalled twice"
    text = console_log(run)
    assert text.count("attempt 1 started (pid") == 1, "the second keeper continues where the first one was"
    assert text.count("[SUCCESS]") == 1


@pytest.mark.e2e
@pytest.mark.fault(
    "processes",
    "the keeper dies, and the ranks end before another keeper starts",
    "the exit status is on disk, and the next keeper reports it",
)
def test_a_keeper_killed_after_the_ranks_ended_still_learns_their_exit_status(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = detached(
        tmp_path, *TWO, JOB, "--gate", str(gate), "--steps", "6", "--mode", "exception", "--fail-rank", "0"
    )
    wait_for_step(run, 3)
    lose_keeper(run)
    gate.touch()
    exit_file = run.node().attempt(1).exit
    assert wait_until(exit_file.exists, 60)
    assert wait_until(lambda: stoker("attach", run.run_id, "--adopt", cwd=tmp_path).code == 3, 30)
    done = stoker("continue", run.run_id, "--yes", "--detach", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "KeyError" in done.err, "why it had failed is said before it is started again"
    state = wait_for_state(run, HeldOpen)
    assert [attempt.exit_code for attempt in state.attempts] == [1, 1]
    verdict = verdict_of(state, 0)
    assert verdict.failure == "code_error"
    assert stoker("stop", run.run_id, cwd=tmp_path).code == 0


@pytest.mark.e2e
@pytest.mark.fault(
    "processes", "a rank ignores SIGTERM", "the stop sequence continues to SIGKILL within its bound"
)
def test_a_rank_that_ignores_sigterm_is_ended_by_sigkill(tmp_path: Path) -> None:
    run = detached(tmp_path, *TWO, "--grace", "2", JOB, "--mode", "stubborn")
    wait_for_step(run, 4)
    done = stoker("stop", run.run_id, cwd=tmp_path)
    assert done.code == 0, done.err
    state = state_of(run)
    assert isinstance(state.condition, Finished)
    assert (state.condition.outcome, state.condition.exit_code) == (Outcome.STOPPED, 5)
    steps = [f.step for f in facts(run) if isinstance(f, ev.StopStepTaken)]
    assert steps[:2] == [ev.StopStep.SIGTERM, ev.StopStep.SIGKILL]
    assert ev.StopStep.SURVIVORS not in steps
    intent = next(i for i, f in enumerate(facts(run)) if isinstance(f, ev.StopIntended))
    first_step = next(i for i, f in enumerate(facts(run)) if isinstance(f, ev.StopStepTaken))
    assert intent < first_step, "the intent is journalled before the act"


@pytest.mark.e2e
def test_a_detached_failure_is_held_until_a_person_restarts_or_stops_it(tmp_path: Path) -> None:
    run = detached(tmp_path, *TWO, JOB, "--mode", "exception")
    state = wait_for_state(run, HeldOpen)
    assert len(state.attempts) == 1
    stale = control.send(run.control, RequestKind.RESTART, if_attempt=7)
    assert wait_until(lambda: state_of(run).answered.get(stale) == "stale", 10)
    control.send(run.control, RequestKind.RESTART, if_attempt=1)
    assert wait_until(lambda: len(state_of(run).attempts) == 2, 30)
    wait_for_state(run, HeldOpen)
    done = stoker("stop", run.run_id, cwd=tmp_path)
    assert done.code == 0, done.err
    state = state_of(run)
    assert end_of(state).exit_code == 5
    assert not keeper_is_alive(run.node().lock) or wait_until(lambda: not keeper_is_alive(run.node().lock), 5)
    lines = console_log(run).partition("\n\n")[0].splitlines()
    assert all(re.match(r"\[[A-Z]+\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines), lines
    assert {"[INFO]", "[WARNING]", "[ERROR]"} <= {line.split()[0] for line in lines}
    assert "attempt 1: first launch" in "\n".join(lines)
    assert "stopped: stopped by" in lines[-1]


@pytest.mark.fault("recovery", "the requested port is taken", "refused in one line before anything starts")
def test_a_named_port_that_is_taken_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = stoker("run", "--no-ui", *TWO, "--master-port", str(port), JOB, cwd=tmp_path)
    assert done.code == 3
    assert len(done.err.strip().splitlines()) == 1
    assert str(port) in done.err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.e2e
@pytest.mark.parametrize(("number", "code"), first(1, [(signal.SIGTERM, 5), (signal.SIGINT, 130)]))
@pytest.mark.fault(
    "processes", "a signal to a headless stoker", "the job is stopped in order, and the exit code shows it"
)
def test_signals_end_a_headless_run_gracefully(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with background("run", "--no-ui", *TWO, JOB, "--gate", "never", cwd=tmp_path) as process:
        run = wait_for_run(tmp_path)
        wait_for_step(run, 4)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == code, out
    state = state_of(run)
    assert end_of(state).outcome is Outcome.STOPPED
