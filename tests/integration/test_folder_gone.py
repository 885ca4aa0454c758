"""A run directory that is deleted or moved while its job runs: said, nothing made where it was, no start, no spinning."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.journal import read_state
from supervisor.run.ownership import Holder, read_holder
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.sources.processes import identify, is_alive
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    JOB,
    background,
    detached,
    end_of,
    environment,
    facts,
    only_run,
    state_of,
    wait_for_run,
    wait_for_step,
)
from tests.tiers import first

pytestmark = pytest.mark.timeout(240)

MOST_CPU = 0.35
"""Of a core, of a keeper whose folder is gone: it looks at processes a few times a second, as always."""


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def command(gate: Path, code: int) -> list[str]:
    """A job that waits at step 4 for its gate, and leaves with this code."""
    return ["--grace", "5", "--", sys.executable, "-u", JOB, "--gate", str(gate), "--code", str(code)]


def started(cwd: Path, gate: Path) -> tuple[RunPaths, Holder]:
    """A run in the background that has made some steps, and its keeper."""
    run = detached(cwd, *command(gate, 0))
    wait_for_step(run, 3)
    return run, not_none(read_holder(run.node().lock))


@pytest.mark.e2e
@pytest.mark.parametrize(("how", "code", "exit_code"), first(1, [("moved", 3, 1), ("deleted", 0, 0)]))
@pytest.mark.fault(
    "journal and disk",
    "the run directory is deleted or moved while the job runs",
    "reported; training continues; no new folder is created",
)
def test_it_is_said_and_training_goes_on_to_its_end(
    tmp_path: Path, how: str, code: int, exit_code: int
) -> None:
    gate = tmp_path / "gate"
    with background("run", "--no-ui", "--max-retries", "3", *command(gate, code), cwd=tmp_path) as process:
        run = wait_for_run(tmp_path)
        state = wait_for_step(run, 3)
        assert state.attempt is not None
        assert state.attempt.pid
        child = psutil.Process(state.attempt.pid)
        elsewhere = tmp_path / "elsewhere"
        if how == "deleted":
            shutil.rmtree(run.root)
        else:
            run.root.rename(elsewhere)
        keeper = psutil.Process(process.pid)
        time.sleep(7.0)  # it looks every 5 s, and once more
        before, since = cpu_s(keeper), time.monotonic()
        time.sleep(3.0)
        assert cpu_s(keeper) - before < MOST_CPU * (time.monotonic() - since), "it does not spin"
        assert child.is_running(), "training continues"
        gate.touch()
        out, _ = process.communicate(timeout=90)
    assert process.returncode == exit_code, out
    assert "the run directory is gone" in out
    reason = f"the run directory was {'deleted' if how == 'deleted' else f'moved to {elsewhere}'}"
    assert reason in out
    assert f"exit code {code}" in out
    assert "Traceback" not in out
    assert not run.root.exists(), "nothing is made where it was"
    if how == "moved":
        state = read_state(RunPaths(elsewhere).node().journal)
        assert isinstance(state.condition, Finished)
        assert (state.condition.outcome, len(state.attempts)) == (Outcome.FAILED, 1)
        assert state.condition.reason.endswith("elsewhere/nodes/0")


@pytest.mark.e2e
@pytest.mark.fault("journal and disk", "the run directory is moved and moved back", "the run continues")
def test_a_detached_run_that_was_moved_and_moved_back_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run, _ = started(tmp_path, gate)
    elsewhere = RunPaths(tmp_path / "elsewhere")
    run.root.rename(elsewhere.root)
    assert wait_until(lambda: "training continues" in elsewhere.node().log.read_text(), 30), (
        "keeper.log says it"
    )
    with background("attach", "--no-ui", str(elsewhere.root), cwd=tmp_path) as follower:
        out, _ = follower.communicate(timeout=60)
        assert "this folder was moved or copied from" in out
    elsewhere.root.rename(run.root)
    assert wait_until(lambda: "in its place again" in run.node().log.read_text(), 30)
    gate.touch()
    assert wait_until(lambda: state_of(run).is_over, 60)
    assert end_of(state_of(run)).outcome is Outcome.SUCCEEDED
    steps = [event.step for event in facts(run) if isinstance(event, ev.Progress) and event.step is not None]
    assert steps == sorted(set(steps))


@pytest.mark.fault(
    "journal and disk",
    "the run directory is deleted under `attach --no-ui`",
    "reported, exit 6; a signal still stops the job",
)
def test_who_follows_it_is_told(tmp_path: Path) -> None:
    run, holder = started(tmp_path, tmp_path / "gate")
    with background("attach", "--no-ui", run.run_id, cwd=tmp_path) as follower:
        assert not_none(follower.stdout).readline()
        shutil.rmtree(run.root)
        out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 6
    assert "the run directory was deleted or moved" in out
    keeper = identify(holder.pid)  # it may stay a zombie below a test that made itself its subreaper
    os.kill(holder.pid, signal.SIGTERM)  # nothing else reaches it
    assert wait_until(lambda: keeper is None or not is_alive(keeper), 60), (
        "the stop continues without a folder"
    )
    assert not run.root.exists()


CLOSED = ["<&- >&- 2>&-", "<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-"]


@pytest.mark.parametrize("closed", first(1, CLOSED))
@pytest.mark.parametrize("way", ["--no-ui", pytest.param("--detach", marks=pytest.mark.e2e)])
@pytest.mark.fault(
    "processes",
    "stdin, stdout and stderr closed, in all combinations",
    "the run continues; no log or journal takes their numbers",
)
def test_closed_standard_streams_are_nobody_elses(tmp_path: Path, closed: str, way: str) -> None:
    """Descriptors 0, 1 and 2 that are closed must not become those of a log: what is printed would go there."""
    script = tmp_path / "t.py"
    script.write_text(
        "import os, sys\n"
        "for n in (0, 1, 2): print(n, os.readlink(f'/proc/self/fd/{n}'), flush=True)\n"
        "print('step 1 loss 2.5', flush=True)\n"
    )
    line = f'exec "$0" -m supervisor run {way} -- "$0" t.py {closed}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    run = only_run(tmp_path)
    assert wait_until(lambda: state_of(run).is_over, 60)
    assert end_of(state_of(run)).outcome is Outcome.SUCCEEDED
    assert state_of(run).unknown_events == 0, "nothing was printed into the journal"
    printed = run.node().attempt(1).agent_log.read_text()
    assert "0 /dev/null" in printed
    for name in ("1", "2"):
        assert f"{name} {run.node().attempt(1).agent_log}" in printed
    log = run.node().log.read_text() if run.node().log.exists() else ""
    assert "Traceback" not in log
