"""torchrun itself is killed, before it prints anything and in the middle of training: what stoker says, and what is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from supervisor.run.records import DecisionKind, FailureClass, Reason
from supervisor.run.state import AttemptState
from supervisor.sources.processes import identify
from tests.conftest import not_none, wait_until
from tests.integration.harness import state_of, stoker, wait_for_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

TRAINS = """
import os, time
open(f"rank-{os.environ['RANK']}-{os.getpid()}", "w").close()
for step in range(1, 2000):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.fault(
    "processes",
    "torchrun's agent is killed (SIGKILL) before its first output, then in the middle of training",
    "the verdict is the launcher's own exit; its ranks are ended, and the run restarts",
)
def test_a_killed_torchrun_is_named_and_its_ranks_are_swept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    begun = stoker(
        "run", "--detach", "--nproc-per-node", "2", "--restart-from-scratch", "train.py", cwd=tmp_path
    )
    assert begun.code == 0, begun.err
    run = wait_for_run(tmp_path)

    def attempt(number: int) -> AttemptState | None:
        return state_of(run).find(number)

    def kill(number: int) -> None:
        view = not_none(attempt(number))
        assert view.pid is not None
        os.kill(view.pid, signal.SIGKILL)

    def check(number: int) -> None:
        assert wait_until(lambda: (view := attempt(number)) is not None and view.decision is not None, 30)
        view = not_none(attempt(number))
        assert view.verdict is not None
        assert (view.exit_code, view.verdict.failure, view.verdict.reason) == (
            -9,
            FailureClass.TERMINATED,
            Reason.OUTSIDE,
        )
        assert view.verdict.title == "The launcher was ended by SIGKILL"

    assert wait_until(lambda: (view := attempt(1)) is not None and bool(view.pid), 60, 0.01)
    kill(1)
    check(1)
    logs = [run.node().attempt(1).agent_log, *run.node().attempt(1).root.rglob("std*.log")]
    assert not any(path.stat().st_size for path in logs if path.exists())
    first = not_none(attempt(1))
    assert not_none(first.decision).kind is DecisionKind.RESTART

    assert wait_until(
        lambda: (view := attempt(2)) is not None and (view.last_step or 0) >= 5 and len(view.ranks) == 2,
        90,
        0.1,
    )
    ranks = [int(path.name.split("-")[2]) for path in tmp_path.glob("rank-*")]
    assert len(ranks) == 2
    assert all(map(identify, ranks))
    kill(2)
    check(2)
    assert wait_until(lambda: not any(map(identify, ranks)), 20)
    stopped = stoker("stop", "--now", run.run_id, cwd=tmp_path)
    assert stopped.code == 0, stopped.err
