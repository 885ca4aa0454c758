"""A few rounds of `bench/fault_run.py`, and what they found."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bench.fault_run import FaultRun
from bench.rounds import SKIPPED, Tally
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import Finished
from supervisor.sources.processes import identify
from tests.conftest import not_none, wait_until
from tests.integration.harness import SCRIPTS, end_of, state_of, stoker, wait_for_state, wait_for_step

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.fault(
    "processes",
    "random SIGKILLs of keeper, viewers, launcher, agent and ranks, alone and together",
    "journal, processes, checkpoints, attempt count and log lines hold (200 of them: `make faults`)",
)
def test_a_few_random_kills_break_nothing(tmp_path: Path) -> None:
    """Of `make faults`: keeper, viewers, launcher, command and ranks, alone and together; all that must hold is looked at."""
    tally, run = Tally(), FaultRun(1, tmp_path)
    for name in run.names(50):
        if len(tally.faults) >= 4:
            break
        tally.add(run.play(name))
    assert tally.findings == []


@pytest.mark.fault(
    "journal and disk",
    "the journal is cut anywhere in its last 4 KiB, also with zeros behind the cut, while its keeper is dead",
    "it folds to its whole lines and takes the next one; `attach --adopt` or `stoker continue` goes on with the run, and no job runs twice",
)
def test_a_journal_cut_anywhere_folds_and_its_run_goes_on(tmp_path: Path) -> None:
    tally = FaultRun(1, tmp_path).play("torn journal/0")
    assert tally.findings == []


@pytest.mark.fault(
    "journal and disk",
    "every fsync takes as long as on a busy file server, and processes are killed",
    "as without it: journal, processes, checkpoints and attempts hold",
)
def test_a_slow_fsync_changes_nothing(tmp_path: Path) -> None:
    tally = FaultRun(2, tmp_path).play("slow fsync/0")
    assert tally.findings == []
    if any(str(fault["outcome"]).startswith(SKIPPED) for fault in tally.faults):
        pytest.skip(str(tally.faults))


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
        attempt = state_of(run).attempt
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

    found = not_none(wait_for_step(run, 5).keeper_pid)
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
    assert end_of(state).outcome is ev.Outcome.SUCCEEDED
