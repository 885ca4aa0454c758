"""Two runs of a script in one folder, under real torchrun: each one's checkpoints are its own where its output setting names them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.state import HeldOpen, RunState
from tests.conftest import wait_until
from tests.integration.harness import stoker, wait_for_end, wait_for_state, wait_for_step

pytestmark = pytest.mark.timeout(400)

# Saves at every fifth step, waits at step 7 and 12 for its files, and fails once at step 13.
SCRIPT = """
import argparse, os, sys, time
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="ckpt")
parser.add_argument("--gate", required=True)
parser.add_argument("--resume", default="")
args = parser.parse_args()
first = 0
if args.resume:
    state = torch.load(args.resume)
    first = state["step"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.load_state_dict(state["optimizer"])
for step in range(first + 1, 16):
    print(f"step {step}/15 loss: {3 / step:.3f}", flush=True)
    if step % 5 == 0:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        torch.save({"step": step, "optimizer": optimizer.state_dict()}, "part." + args.gate)
        os.replace("part." + args.gate, f"{args.out}_step{step}.pt")
    while step in (7, 12) and not os.path.exists(f"{args.gate}.{step}"):
        time.sleep(0.02)
    if step == 13 and first < 10:
        sys.exit(3)
"""
RUN = ("--python", sys.executable, "--nproc-per-node", "1", "--resume-knob", "--resume=PATH")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def started(folder: Path, gate: str, *words: str, flags: tuple[str, ...] = ()) -> RunPaths:
    done = stoker("run", "--detach", *RUN, *flags, "train.py", "--gate", gate, *words, cwd=folder)
    assert done.code == 0, done.err
    return RunPaths(folder / "runs" / done.out.strip())


def go(folder: Path, gate: str, *steps: int) -> None:
    for step in steps:
        (folder / f"{gate}.{step}").touch()


def advised(state: RunState) -> list[str]:
    return [advisory.text for advisory in state.advisories if advisory.code == "shared_output"]


@pytest.mark.thorough
def test_each_of_two_runs_with_an_output_of_its_own_resumes_from_its_own(folder: Path) -> None:
    runs = {name: started(folder, name, "--out", name) for name in ("a", "b")}
    for run in runs.values():
        wait_for_step(run, 7)
    for name in runs:
        go(folder, name, 7, 12)
    for name, run in runs.items():
        state = wait_for_end(run, 120)
        assert len(state.attempts) == 2
        assert state.attempts[1].argv[-1] == f"--resume={folder / f'{name}_step10.pt'}"
        assert {Path(found.path).name.partition("_")[0] for found in state.checkpoints} == {name}
        assert not advised(state)


@pytest.mark.e2e
def test_a_newer_checkpoint_that_may_be_another_runs_is_not_taken(folder: Path) -> None:
    mine = started(folder, "a", flags=("--no-retry",))
    wait_for_step(mine, 7)
    older = folder / "ckpt_step5.pt"
    assert wait_until(lambda: older.exists() and time.time() > older.stat().st_mtime + 2.5, 60)
    # It trains without a checkpoint of its own meanwhile: which of the two wrote the next one cannot be seen.
    other = started(folder, "b", "--resume", str(older), flags=("--no-retry",))
    wait_for_step(other, 7)
    go(folder, "a", 7, 12)
    state = wait_for_state(mine, HeldOpen, 120)
    assert state.checkpoints == (), "the end alone shows what lies there, and by then both trained"
    assert advised(state)
    assert stoker("stop", mine.run_id, cwd=folder).code == 0
    assert stoker("stop", other.run_id, cwd=folder).code == 0
