"""What cannot be read of a script's batch is asked once: one request answers, later runs know, an edited script is asked about again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from supervisor.job.spec import Unread
from supervisor.run import events as ev
from supervisor.run.access import control
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import Backoff, Finished, HeldOpen
from tests.conftest import wait_until
from tests.integration.harness import facts, stoker, wait_for_state

# It may divide the batch by its accumulation, by another name: nobody can read whether that is its micro-batch. In truth it is not.
SCRIPT = """
import argparse, json, os, time
import torch

def ran_out():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
    )

parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int, default=32)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
args = parser.parse_args()
steps = args.gradient_accumulation_steps
every = steps
log_every = args.train_batch_size // every
rank = int(os.environ.get("RANK", "0"))
if rank == int(os.environ.get("WORLD_SIZE", "1")) - 1:
    with open("told.jsonl", "a") as told:
        print(json.dumps([args.train_batch_size, args.gradient_accumulation_steps]), file=told)
    if args.train_batch_size > 12:
        ran_out()
    open("passed", "w").close()
while not os.path.exists("passed"):
    time.sleep(0.02)  # rank 0 as in a collective
for step in range(1, 6):
    print(f"step {step}/5 loss: {1 / step:.4f}", flush=True)
"""
WORDS = ("train.py", "--train_batch_size", "24", "--gradient_accumulation_steps", "2")


def told(folder: Path) -> list[tuple[int, int]]:
    """What each launch trained with."""
    lines = (folder / "told.jsonl").read_text().splitlines()
    return [(micro, steps) for micro, steps in map(json.loads, lines)]


def ask(run: RunPaths, value: str, if_attempt: int = 1) -> str:
    """Put an answer as a card does; how the keeper took it."""
    args = control.RequestArgs(answer=value)
    request = control.send(run.control, ev.RequestKind.ANSWER, if_attempt=if_attempt, args=args)
    assert wait_until(lambda: request in read_state(run.node().journal).answered, 60)
    return read_state(run.node().journal).answered[request]


def begin(folder: Path, *flags: str) -> RunPaths:
    """A run on two ranks that a person may answer."""
    done = stoker(
        "run", "--detach", "--python", sys.executable, "--nproc-per-node", "2", *flags, *WORDS, cwd=folder
    )
    assert done.code == 0, done.err
    return RunPaths(folder / "runs" / done.out.strip())


def headless(folder: Path, *flags: str) -> tuple[int, str]:
    """One rank, with nobody to ask."""
    done = stoker("run", "--no-ui", *flags, "--", sys.executable, *WORDS, cwd=folder)
    return done.code, done.out + done.err


@pytest.mark.e2e
def test_one_key_answers_and_later_runs_of_the_same_script_know(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = begin(tmp_path)
    held = wait_for_state(run, HeldOpen, 120)
    question = held.open_question
    assert question is not None
    assert (question.what, question.knob, question.number) == (Unread.SCOPE, "--train_batch_size", 24)
    assert [a.value for a in question.answers] == ["per_rank", "global"]

    assert ask(run, "per_rank", if_attempt=7) == "stale"
    assert ask(run, "sideways") == "that is no answer to what is asked"
    assert isinstance(read_state(run.node().journal).condition, HeldOpen)
    assert ask(run, "global") == "done"
    first = read_state(run.node().journal).attempts[0].decision
    assert ask(run, "per_rank") == "done", "as long as nothing was started the answer can be another one"
    planned = read_state(run.node().journal)
    assert isinstance(planned.condition, Backoff | HeldOpen)
    decision = planned.attempts[0].decision
    assert decision is not None
    assert decision != first
    assert decision.change is not None
    assert decision.change.batch is not None
    assert decision.change.batch.after.micro_batch_per_rank == 12
    assert decision.change.batch.before.global_batch == decision.change.batch.after.global_batch == 96
    control.send(run.control, ev.RequestKind.START_NOW, if_attempt=1)
    state = wait_for_state(run, Finished, 120)
    assert isinstance(state.condition, Finished)
    assert state.condition.exit_code == 0, state.condition
    assert told(tmp_path) == [(24, 2), (12, 4)]
    assert state.attempts[1].batch is not None
    assert state.attempts[1].batch.global_batch == 96
    late = control.send(run.control, ev.RequestKind.ANSWER, args=control.RequestArgs(answer="global"))
    assert late not in read_state(run.node().journal).answered
    memory = Path(os.environ["XDG_STATE_HOME"]) / "stoker" / "answers.jsonl"
    assert b'"value":"per_rank"' in memory.read_bytes()

    code, out = headless(tmp_path)
    assert code == 0, out
    assert ": 24 is per rank" in out
    assert "you answered on 2" in out
    assert "to restart smaller, answer" not in out
    assert told(tmp_path)[2:] == [(24, 2), (12, 4)]
    done = stoker("run", "--dry-run", "--json", "--", sys.executable, *WORDS, cwd=tmp_path)
    plan = json.loads(done.out)
    assert plan["batch"]["micro"]["source"].endswith(": --batch-scope per_rank")
    assert [change["to"] for change in plan["on_oom"]["changes"]] == ["12", "4"]

    memory.write_bytes(b"\x00" + memory.read_bytes()[10:])
    code, out = headless(tmp_path)
    assert code == 1, "what cannot be read is not known"
    assert "--batch-scope per_rank (24 is per rank: 12 × accumulation 4 × " in out


@pytest.mark.e2e
def test_an_edited_script_is_asked_about_again_and_a_flag_answers_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = begin(tmp_path)
    wait_for_state(run, HeldOpen, 120)
    assert ask(run, "per_rank") == "done"
    assert stoker("stop", run.run_id, cwd=tmp_path).code == 0
    script.write_text(SCRIPT + "# edited\n")
    code, out = headless(tmp_path)
    assert code == 1, out
    (line,) = [line for line in out.splitlines() if "to restart smaller, answer" in line]
    assert "what does --train_batch_size 24 count?" in line
    assert "--batch-scope per_rank (24 is per rank: 12 × accumulation 4" in line
    assert "--batch-scope global (24 is global: 6 × accumulation 4" in line
    assert told(tmp_path)[1:] == [(24, 2)], "nothing was guessed"
    code, out = headless(tmp_path, "--batch-scope", "per_rank")
    assert code == 0, out
    assert told(tmp_path)[2:] == [(24, 2), (12, 4)]


@pytest.mark.e2e
def test_a_keeper_that_takes_over_knows_what_was_answered(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = begin(tmp_path)
    wait_for_state(run, HeldOpen, 120)
    assert ask(run, "per_rank") == "done"
    assert stoker("stop", run.run_id, cwd=tmp_path).code == 0
    wait_for_state(run, Finished, 60)
    done = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert told(tmp_path)[-1] == (12, 4)
    answers = [fact for fact in facts(run) if isinstance(fact, ev.BatchAnswered)]
    assert [fact.value for fact in answers] == ["per_rank"]
