"""A few of the random kills of `bench/kills.py`, and what they found."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bench.kills import kill_at_random
from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import Finished
from supervisor.sources.processes import identify
from tests.conftest import wait_until
from tests.integration.harness import SCRIPTS, stoker, wait_for_state, wait_for_step

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.fault(
    "processes",
    "random SIGKILLs of keeper, viewers, launcher, agent and ranks, alone and together",
    "journal, processes, checkpoints, attempt count and log lines hold (200 of them: `make faults`)",
)
def test_a_few_random_kills_break_nothing(tmp_path: Path) -> None:
    """Of `make faults`: keeper, viewers, launcher, command and ranks, alone and together; all that must hold is looked at."""
    found = kill_at_random(7, 1, folder=tmp_path)
    assert found["kills"] >= 7
    assert found["findings"] == []


@pytest.mark.fault(
    "processes",
    "the keeper is killed between a sample and its progress event",
    "the next keeper journals those steps",
)
def test_the_steps_of_a_killed_keepers_last_second_are_journalled_by_the_next(tmp_path: Path) -> None:
    work = tmp_path / "job"
    work.mkdir()
    script = str(SCRIPTS / "killed_training.py")
    flags = ["--detach", "--resume-knob", "--resume=auto", "--grace", "2"]
    done = stoker("run", *flags, "--", sys.executable, script, str(work), cwd=tmp_path)
    assert done.code == 0, done.err
    run = RunPaths(tmp_path / "runs" / done.out.strip())
    log = run.node().attempt(1).agent_log

    def step_in_log() -> int:
        rows = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
        return max((int(words[1]) for words in rows if words[0] == "step"), default=0)

    def step_in_journal() -> int:
        attempt = read_state(run.node().journal).attempt
        return (attempt.last_step or 0) if attempt is not None else 0

    def step_in_series() -> float:
        samples = SeriesReader(run.node().series, METRICS).read()
        return (samples[-1].v.get("step") or 0) if samples else 0

    def send(pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            os.kill(pid, number)

    def all_stand_between() -> bool:
        """Whether the keeper stands, stopped, where it had read all lines and journalled less than that."""
        send(job, signal.SIGSTOP)
        if wait_until(lambda: step_in_series() == step_in_log(), 0.9, 0.005):
            send([keeper], signal.SIGSTOP)
            if step_in_journal() < step_in_log():
                return True
            send([keeper], signal.SIGCONT)
        send(job, signal.SIGCONT)
        return False

    found = wait_for_step(run, 5).keeper_pid
    assert found is not None
    keeper = found
    job = [int(path.name.partition("-")[2]) for path in work.glob("1-*")]
    # Samples are written at once, progress once a second and with a checkpoint: it dies between the two.
    assert wait_until(all_stand_between, 60, 0.07)
    pids = [*job, keeper]
    send(pids, signal.SIGKILL)
    assert wait_until(lambda: not any(map(identify, pids)), 10)
    continued = stoker("continue", "--yes", "--detach", run.run_id, cwd=tmp_path)
    assert continued.code == 0, continued.err
    first, _ = wait_for_step(run, step_in_log() + 3).attempts
    assert first.last_step == step_in_log()
    (work / "finish").touch()
    state = wait_for_state(run, Finished)
    assert isinstance(state.condition, Finished)
    assert state.condition.outcome is ev.Outcome.SUCCEEDED
