"""A few rounds of `bench/fault_run.py`, what they found, and a clock that is set forth and back by libfaketime."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from bench.fault_run import FAKETIME, FaultRun
from bench.rounds import SKIPPED, Tally
from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import Finished
from supervisor.sources.processes import identify
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    SCRIPTS,
    background,
    detached,
    end_of,
    facts,
    last_step,
    put,
    state_of,
    stoker,
    wait_for_run,
    wait_for_state,
    wait_for_step,
)

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
@pytest.mark.fault(
    "journal and disk",
    "every fsync takes as long as on a busy file server, and processes are killed",
    "as without it: journal, processes, checkpoints and attempts hold",
)
@pytest.mark.parametrize(("seed", "name"), [(1, "torn journal/0"), (2, "slow fsync/0")])
def test_a_condition_of_the_machine_breaks_nothing(tmp_path: Path, seed: int, name: str) -> None:
    tally = FaultRun(seed, tmp_path).play(name)
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
    flags = ("--resume-knob", "--resume=auto", "--grace", "2")
    run = detached(tmp_path, *flags, "--", sys.executable, script, str(work))
    log = run.node().attempt(1).agent_log

    def step_in_log() -> int:
        rows = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
        return max((int(words[1]) for words in rows if words[0] == "step"), default=0)

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
            if last_step(run) < step_in_log():
                return True
            send([keeper], signal.SIGCONT)
        send(job, signal.SIGCONT)
        return False

    keeper = not_none(wait_for_step(run, 5).keeper_pid)
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


STEPS = """
import os, select, sys
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print(f"step {n} loss {5 / n:.3f}", flush=True)
    select.select([], [], [], 0.05)  # libfaketime 0.9.10 refuses the call that time.sleep makes
"""


def clocks_set(run: RunPaths) -> int:
    return sum(isinstance(fact, ev.ClockSet) for fact in facts(run))


@pytest.mark.fault(
    "journal and disk",
    "the machine's clock is set back and forth during a run",
    "waits and elapsed times are not affected",
)
@pytest.mark.fault(
    "journal and disk",
    "the clock is set 2 h ahead and 3 h back (libfaketime)",
    "no time is negative; the order is kept",
)
def test_times_go_forward_whatever_the_clock_is_set_to(tmp_path: Path) -> None:
    if not FAKETIME:
        pytest.skip("libfaketime (Debian: faketime) is not installed")
    clock, gate = tmp_path / "clock", tmp_path / "gate"
    clock.write_text("+0")
    env = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    began = time.monotonic()
    command = ("--", sys.executable, "-c", STEPS, str(gate))
    with background("run", "--no-ui", *command, cwd=tmp_path, env=env) as process:
        run = wait_for_run(tmp_path)
        last = 3
        for setting in ("+2h", "-3h", "+0"):
            wait_for_step(run, last)
            count = clocks_set(run)
            put(clock, setting)
            assert wait_until(lambda count=count: clocks_set(run) > count, 60), setting  # type: ignore[misc]
            last = last_step(run) + 20
        wait_for_step(run, last)
        gate.touch()
        out, _ = process.communicate(timeout=90)
    took = time.monotonic() - began
    assert process.returncode == 0, out
    told = facts(run)
    assert [round(fact.ahead_s / 3600) for fact in told if isinstance(fact, ev.ClockSet)] == [2, -3, 0]
    # The job's own times are not in this journal: those of the keeper continue.
    assert all(later.t >= earlier.t for earlier, later in pairwise(told))
    state = state_of(run)
    assert end_of(state).outcome is Outcome.SUCCEEDED
    view = state.attempts[0]
    assert 0 <= not_none(view.ended_t) - not_none(view.started_t) <= took
    steps = [fact.step for fact in told if isinstance(fact, ev.Progress) and fact.step is not None]
    assert steps == sorted(set(steps)), "in the order of their lines"
    times: list[float] = []
    reader = SeriesReader(run.node().series, METRICS)
    while samples := reader.read():
        times += [sample.t for sample in samples]
    assert all(0 <= later - earlier < took for earlier, later in pairwise(times))
