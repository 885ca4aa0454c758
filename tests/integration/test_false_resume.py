"""A restart that seems not to resume is stopped and held; one whose numbers went bad goes back to before that.

One that loads nothing: test_measured_restarts.py.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.state import Finished, HeldOpen
from tests.integration.harness import detached, run_headless, wait_for_end, wait_for_state

HEAD = """
import argparse, json, os, time
import torch

torch.set_num_threads(1)
p = argparse.ArgumentParser()
p.add_argument("--batch_size", type=int, default=8)
p.add_argument("--accum", type=int, default=1)
p.add_argument("--output_dir", default="out")
"""
LOOP = """
model = torch.nn.Linear(4, 4); optimizer = torch.optim.AdamW(model.parameters())

def load(path):
    c = torch.load(path); model.load_state_dict(c["model"]); optimizer.load_state_dict(c["optimizer"]); return c["step"]

def save(path, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)

def ran_out():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
    )

def train(step):
    for _ in range(a.accum):
        (model(torch.randn(a.batch_size, 4)).pow(2).mean() / a.accum).backward()
    optimizer.step(); optimizer.zero_grad(); time.sleep(0.05)
"""
# It resumes, and counts the steps that it prints from 0 at each start.
COUNTS_AGAIN = (
    HEAD
    + "a = p.parse_args()\n"
    + LOOP
    + """
os.makedirs(a.output_dir, exist_ok=True)
last = os.path.join(a.output_dir, "last.pt")
done = 0
if os.path.exists(last): done = load(last)
with open("starts.jsonl", "a") as file: print(json.dumps(done), file=file)
begun = done
while done < 80:
    train(done); done += 1
    print(f"step {done - begun}: loss {1 / done:.4f}", flush=True)
    if done % 20 == 0: save(last, done)
    if a.batch_size > 4 and done > 45: ran_out()
"""
)
# Its loss is nan from a step on, and it dies of something else, long after it has saved that.
GOES_BAD = (
    HEAD
    + """
p.add_argument("--resume", default=None, help="path of a checkpoint to resume from")
a = p.parse_args()
"""
    + LOOP
    + """
os.makedirs(a.output_dir, exist_ok=True)
step = load(a.resume) if a.resume else 0
with open("starts.jsonl", "a") as file: print(json.dumps(step), file=file)
while step < 100:
    train(step); step += 1
    print(f"step {step}: loss {float('nan') if step >= 37 else 1 / step:.4f}", flush=True)
    if step % 10 == 0: save(os.path.join(a.output_dir, f"step_{step}.pt"), step)
    if step > 46: os.abort()
"""
)


UNMEASURED = ("--no-instrument", "--self-resuming", "--batch-scope", "per_rank")


@pytest.mark.e2e
def test_a_script_that_counts_from_0_is_stopped_once_and_a_person_restarts_it(tmp_path: Path) -> None:
    """Without the measurements: they would have seen that the checkpoint was loaded."""
    (tmp_path / "train.py").write_text(COUNTS_AGAIN)
    words = (sys.executable, "train.py", "--batch_size", "8", "--accum", "1", "--output_dir", "out")
    run = detached(tmp_path, *UNMEASURED, "--", *words)
    held = wait_for_state(run, (HeldOpen, Finished), 240)
    assert isinstance(held.condition, HeldOpen), held.condition
    assert re.match(r"did not resume: began at step 0; checkpoint \d+ is kept", held.condition.reason)
    assert held.open_question is None
    control.send(run.control, ev.RequestKind.RESTART, if_attempt=2)
    state = wait_for_end(run, 180)
    assert state.kept == ()
    starts = [int(line) for line in (tmp_path / "starts.jsonl").read_text().split()]
    assert starts[:2] == [0, 40]
    assert starts[2] in {40, 60}, "it had resumed all the time, and made steps until it was stopped"


@pytest.mark.e2e
def test_after_the_loss_was_no_number_the_checkpoint_before_it_is_taken_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GOES_BAD)
    done, _, state = run_headless("--", sys.executable, "train.py", "--output_dir", "out", cwd=tmp_path)
    out = done.out + done.err
    assert done.code == 4, out
    starts = [int(line) for line in (tmp_path / "starts.jsonl").read_text().split()]
    assert starts == [0, 30], "not 40, whose numbers are bad"
    assert [view.resume_at for view in state.attempts] == [None, 30]
    assert "and stoker goes back for that only once a run" in out
    assert os.path.exists(tmp_path / "out" / "step_40.pt")
