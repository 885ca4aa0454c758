"""`stoker profile`: a trace of a live training, and what is said where there is none."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from supervisor.cli import profile
from supervisor.keeper.process.child import own_identity
from supervisor.run import events as ev
from supervisor.run.control import Request, pending
from supervisor.run.ownership import KeeperLock
from tests.cli.conftest import Answer, Call
from tests.conftest import wait_until
from tests.integration.harness import background, stoker, wait_for_run, wait_for_step
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import INTENDED, RUNS, STARTED, T, append

SMALL = ("--depth=1", "--model_dim=32", "--max_seq_len=32", "--device_batch_size=2", "--corpus_mib=1")


@pytest.mark.e2e
def test_a_live_training_is_traced_and_goes_on(tmp_path: Path) -> None:
    words = (
        "run",
        "--no-ui",
        "--no-retry",
        "--python",
        sys.executable,
        "--nproc-per-node",
        "2",
        "-m",
        "trainer",
    )
    with background(*words, *SMALL, "--device=cpu", "--num_iterations=1000000", cwd=tmp_path):
        run = wait_for_run(tmp_path)
        wait_for_step(run, 5)
        done = stoker("profile", cwd=tmp_path)
        assert done.code == 0, done.err
        assert str(run.artifacts) in done.out
        assert wait_until(lambda: len(list(run.artifacts.glob("trace-*-rank?.json"))) == 2, 120)
        paths = list(run.artifacts.glob("trace-*-rank?.json"))
        assert all(json.loads(path.read_text())["traceEvents"] for path in paths)
        reached = wait_for_step(run, 5).attempts[-1].last_step or 0
        wait_for_step(run, reached + 5)
        assert stoker("stop", "--now", cwd=tmp_path).code == 0


@pytest.mark.parametrize("answer", ["done", "refuses", "waits"])
def test_it_says_what_the_keeper_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, answer: str
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)
    assert call("profile", run.root) == Answer(
        3, "", "stoker profile: run-1 has no keeper: nothing of it is trained now\n"
    )
    lock = KeeperLock(run.node().lock, start_time=own_identity().start_time)
    gone = f"{run.control}: No such file or directory"
    assert call("profile", run.root) == Answer(1, "", f"stoker profile: {gone}\n")
    run.control.mkdir()

    def keeper() -> None:
        assert wait_until(lambda: pending(run.control), 10)
        (request,) = pending(run.control)
        assert isinstance(request, Request)
        assert request.kind is ev.RequestKind.PROFILE
        if answer == "done":
            append(run, ev.RequestDone(t=T, request_id=request.id, request=request.kind, by="kim"))
        elif answer == "refuses":
            append(
                run,
                ev.RequestRefused(t=T, request_id=request.id, request="profile", by="kim", reason="not now"),
            )

    thread = threading.Thread(target=keeper)
    thread.start()
    if answer == "waits":
        monkeypatch.setattr(profile, "ANSWERED_S", 0.2)
    said = call("profile", run.root)
    thread.join()
    lock.release()
    assert said == {
        "done": Answer(0, f"run-1: asked; the traces come to {run.artifacts}, a file a rank, where its script writes them\n", ""),
        "refuses": Answer(3, "", "stoker profile: run-1: not now\n"),
        "waits": Answer(1, "", "stoker profile: run-1: no answer after 0 s\n"),
    }[answer]  # fmt: skip
