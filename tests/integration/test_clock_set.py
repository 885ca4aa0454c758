"""A real run whose wall clock is set forth and back by libfaketime, for stoker and the job alike."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, SeriesReader
from tests.conftest import wait_until
from tests.integration.harness import background, end_of, facts, put, state_of, wait_for_run, wait_for_step

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))

pytestmark = pytest.mark.timeout(240)


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


@pytest.mark.e2e
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
    if not LIBRARIES:
        pytest.skip("libfaketime (Debian: faketime) is not installed")
    clock, gate = tmp_path / "clock", tmp_path / "gate"
    clock.write_text("+0")
    env = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    began = time.monotonic()
    command = ["--", sys.executable, "-c", STEPS, str(gate)]
    with background("run", "--no-ui", *command, cwd=tmp_path, env=env) as process:
        run = wait_for_run(tmp_path)
        last = 3
        for setting in ("+2h", "-3h", "+0"):
            wait_for_step(run, last)
            count = clocks_set(run)
            put(clock, setting)
            assert wait_until(lambda count=count: clocks_set(run) > count, 60), setting  # type: ignore[misc]
            last = (state_of(run).attempts[0].last_step or 0) + 20
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
    assert view.started_t is not None
    assert view.ended_t is not None
    assert 0 <= view.ended_t - view.started_t <= took
    steps = [fact.step for fact in told if isinstance(fact, ev.Progress) and fact.step is not None]
    assert steps == sorted(set(steps)), "in the order of their lines"
    times: list[float] = []
    reader = SeriesReader(run.node().series, METRICS)
    while samples := reader.read():
        times += [sample.t for sample in samples]
    assert all(0 <= later - earlier < took for earlier, later in pairwise(times))
