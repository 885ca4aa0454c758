"""A script on two ranks of a real torchrun is restarted because a person asks, and continues from its checkpoint.

Restarts by themselves, in each style: test_measured_restarts.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.state import HeldOpen
from tests.conftest import not_none
from tests.integration.harness import (
    background,
    detached,
    state_of,
    wait_for_end,
    wait_for_run,
    wait_for_state,
    wait_for_step,
)

# Rank 1 runs out once a checkpoint is there and a step after it was made. Each rank says what it trains with, and from where.
LOOP = """
import json, os, time
from pathlib import Path
import torch

rank, limit = int(os.environ["RANK"]), int(os.environ.get("LIMIT", "4"))

def launches(rank):
    told = Path(f"told.{rank}.jsonl")
    return told.read_text().count("\\n") if told.exists() else 0

def train(micro, accumulation, first, save, saved):
    told = Path(f"told.{rank}.jsonl").open("a")
    print(json.dumps({"micro": micro, "accumulation": accumulation, "first": first}), file=told, flush=True)
    while launches(1 - rank) < launches(rank):
        time.sleep(0.02)  # the other rank reads the same checkpoint
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = iter(torch.utils.data.DataLoader(torch.randn(4000, 4), batch_size=micro))
    for step in range(first + 1, 31):
        time.sleep(0.03)
        for _ in range(accumulation):
            model(next(batches)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}/30 loss: {3.0 / step:.4f}", flush=True)
        if step % 5 == 0:
            save(step)
        while step == 13 and micro > limit and not (rank == 1 and saved(10)):
            time.sleep(0.02)  # rank 0 as in a collective
        if step == 13 and micro > limit:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
            )
"""
PARSER = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--grad_accum", type=int, default=2)
"""
ONE_FILE = """
def save(step):
    if rank == 0:
        state = {"model": {}, "optimizer": {"lr": 0.1}, "step": step}
        Path("out").mkdir(exist_ok=True)
        torch.save(state, "out/part")
        os.replace("out/part", "out/ckpt.pt")

def saved(step):
    return os.path.exists("out/ckpt.pt") and torch.load("out/ckpt.pt")["step"] >= step
"""
END = "\ntrain(args.batch_size, args.grad_accum, first, save, saved)\n"


BATCH = ("--batch-knob", "--batch_size", "--accumulation-knob", "--grad_accum")


A_PATH = (
    LOOP
    + ONE_FILE
    + PARSER
    + 'parser.add_argument("--resume", default="")\nargs = parser.parse_args()\n'
    + 'first = torch.load(args.resume)["step"] if args.resume else 0'
    + END
)
# Nothing shows that it resumes.
BY_ITSELF = (
    LOOP
    + ONE_FILE
    + PARSER
    + 'args = parser.parse_args()\nfirst = torch.load("out/ckpt.pt")["step"] if getattr(os, "path").isfile("out/ckpt.pt") else 0'
    + END
)
START = ("--python", sys.executable, "--nproc-per-node", "2", *BATCH)
WORDS = ("train.py", "--batch_size", "8", "--grad_accum", "2")


def told(cwd: Path, rank: int = 0) -> list[tuple[int, int, int]]:
    """(micro-batch, accumulation, step that it continues from) of each launch, as the script itself had them."""
    lines = (cwd / f"told.{rank}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(one["micro"], one["accumulation"], one["first"]) for one in map(json.loads, lines)]


@pytest.mark.e2e
def test_a_held_run_is_restarted_with_its_offer_by_one_request(tmp_path: Path) -> None:
    """Enter on its card: nothing is known of a resume, as it is not measured that the script has one, and a person wants it."""
    (tmp_path / "train.py").write_text(BY_ITSELF, encoding="utf-8")
    unmeasured = ("--batch-scope", "per_rank", "--no-instrument")
    run = detached(tmp_path, *START, *unmeasured, *WORDS)
    held = wait_for_state(run, HeldOpen, 90)
    assert isinstance(held.condition, HeldOpen)
    assert held.condition.decision is not None
    assert not_none(held.condition.decision.change).batch is not None
    control.send(run.control, ev.RequestKind.RESTART_WITH, args=control.RequestArgs(offered=True))
    wait_for_end(run, 90)
    assert told(tmp_path) == [(8, 2, 0), (4, 4, 10)]


@pytest.mark.e2e
def test_b_on_a_live_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(A_PATH.replace("0.03", "0.15"), encoding="utf-8")
    known = ("--env", "LIMIT=99", "--resume-knob", "--resume=PATH")
    with background("run", "--no-ui", *START, *known, *WORDS, cwd=tmp_path):
        run = wait_for_run(tmp_path)
        wait_for_step(run, 12)
        control.send(run.control, ev.RequestKind.RESTART_WITH, args=control.RequestArgs(micro_batch=2))
        state = wait_for_end(run, 90)
    (_, (micro, accumulation, first)) = told(tmp_path)
    assert (micro, accumulation) == (2, 8)
    assert first >= 10
    assert state.attempts[1].first_step == first + 1
    assert state_of(run).attempts[1].resume == str(tmp_path / "out" / "ckpt.pt")
