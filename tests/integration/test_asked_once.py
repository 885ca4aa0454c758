"""What measuring leaves open of a script's batch is asked once: one request answers, a keeper that takes over knows, an edited script is asked about again."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from supervisor.job.spec import Unread
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.state import Backoff, Finished, HeldOpen
from tests.conftest import not_none, wait_until
from tests.integration.harness import SCRIPTS, decision_of, detached, facts, state_of, stoker, wait_for_state
from tests.integration.test_measured_restarts import fed

FLAGS = ("--no-check", "--python", sys.executable, "--nproc-per-node", "2")
WORDS = ("twins.py", "--batch_size", "8", "--mini_batch_size", "8", "--grad_accum", "1")


def ask(run: RunPaths, value: str, if_attempt: int = 1) -> str:
    """Put an answer as a card does; how the keeper took it."""
    args = control.RequestArgs(answer=value)
    request = control.send(run.control, ev.RequestKind.ANSWER, if_attempt=if_attempt, args=args)
    assert wait_until(lambda: request in state_of(run).answered, 60)
    return state_of(run).answered[request]


@pytest.mark.e2e
def test_one_request_answers_and_an_edited_script_is_asked_about_again(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(SCRIPTS / "restarts", folder)
    (folder / "out").mkdir()
    run = detached(folder, *FLAGS, *WORDS)
    held = wait_for_state(run, HeldOpen, 120)
    assert not_none(held.open_question).what is Unread.MICRO

    assert ask(run, "--mini_batch_size", if_attempt=7) == "stale"
    assert ask(run, "--grad_accum") == "that is no answer to what is asked"
    assert isinstance(state_of(run).condition, HeldOpen)
    assert ask(run, "--batch_size") == "done"
    assert ask(run, "--mini_batch_size") == "done", "until it is started the answer can be another one"
    planned = state_of(run)
    assert isinstance(planned.condition, Backoff)
    decision = decision_of(planned, 0)
    assert decision.change is not None
    assert not_none(decision.change.batch).after.micro_batch_per_rank == 4

    assert stoker("stop", run.run_id, cwd=folder).code == 0
    wait_for_state(run, Finished, 60)
    done = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=folder)
    assert done.code == 0, done.out + done.err
    state = state_of(run)
    assert fed(folder, 0)[1].steps == dict.fromkeys(range(5, 11), (4, 4))
    assert state.attempts[1].confirmed is not None
    given = [fact.value for fact in facts(run) if isinstance(fact, ev.BatchAnswered)]
    assert given == ["--batch_size", "--mini_batch_size"]

    (folder / "out" / "model.pt").unlink()
    script = folder / "twins.py"
    script.write_text(f"{script.read_text()}# edited\n")
    done = stoker("run", "--no-ui", *FLAGS, *WORDS, cwd=folder)
    assert done.code == 1, done.out + done.err
    (line,) = [line for line in done.out.splitlines() if "to restart smaller, answer" in line]
    assert "this run feeds 8 samples a rank on 2 ranks: which setting makes the 8?" in line
    assert (
        "--batch-knob --mini_batch_size (--mini_batch_size 8 makes the micro-batch: 4 × accumulation 2"
        in line
    )
    assert done.out.rstrip().splitlines()[-1].startswith("stoker run --batch-knob NAME ")
