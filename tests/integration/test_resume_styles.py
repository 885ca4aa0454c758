"""Foreign scripts on two ranks of a real torchrun run out of memory after a checkpoint: restarted smaller, each continues in its own style.

Their settings are declared: what the declaration names is set, whatever starts the script and whatever was measured.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished, HeldOpen
from tests.integration.harness import (
    background,
    run_headless,
    stoker,
    wait_for_run,
    wait_for_state,
    wait_for_step,
)
from tests.tiers import first

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
FOLDERS = """
def save(step):
    folder = Path(f"out/checkpoint-{step}")
    folder.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        torch.save({"lr": 0.1}, folder / "optimizer.bin")
    torch.save({"rng": 1}, folder / f"random_states_{rank}.pkl")

def saved(step):
    return all(os.path.exists(f"out/checkpoint-{step}/random_states_{r}.pkl") for r in (0, 1))
"""
NUMBERED = """
def save(step):
    if rank == 0:
        Path("out").mkdir(exist_ok=True)
        torch.save({"optimizer": {}, "step": step}, "out/part")
        os.replace("out/part", f"out/model_{step:06d}.pt")

def saved(step):
    return os.path.exists(f"out/model_{step:06d}.pt")
"""
CONFIGURATOR = """
import sys
from ast import literal_eval
for arg in sys.argv[1:]:
    key, val = arg[2:].split("=")
    globals()[key] = val if isinstance(globals()[key], str) else literal_eval(val)
"""
END = "\ntrain(args.batch_size, args.grad_accum, first, save, saved)\n"


BATCH = ("--batch-knob", "--batch_size", "--accumulation-knob", "--grad_accum")


@dataclass(frozen=True)
class Style:
    """A script, its arguments, what the second launch's command line is to hold, and what it is not to."""

    source: str
    words: tuple[str, ...]
    args: tuple[str, ...] = ("--batch_size", "8", "--grad_accum", "2")
    resumes: str = ""
    files: tuple[tuple[str, str], ...] = ()


STYLES = {
    "a path": Style(
        LOOP
        + ONE_FILE
        + PARSER
        + 'parser.add_argument("--resume", default="")\nargs = parser.parse_args()\n'
        + 'first = torch.load(args.resume)["step"] if args.resume else 0'
        + END,
        words=(*BATCH, "--resume-knob", "--resume=PATH"),
        resumes="--resume={cwd}/out/ckpt.pt",
    ),
    "a folder's path": Style(
        LOOP
        + FOLDERS
        + PARSER
        + 'parser.add_argument("--output_dir", default="out")\n'
        + 'parser.add_argument("--resume_from_checkpoint", default=None)\nargs = parser.parse_args()\n'
        + 'first = int(args.resume_from_checkpoint.rpartition("-")[2]) if args.resume_from_checkpoint else 0'
        + END,
        words=(*BATCH, "--resume-knob", "--resume_from_checkpoint=PATH"),
        resumes="--resume_from_checkpoint={cwd}/out/checkpoint-10",
    ),
    "a word": Style(
        LOOP
        + FOLDERS
        + PARSER
        + 'parser.add_argument("--output_dir", default="out")\n'
        + 'parser.add_argument("--resume_from_checkpoint", default=None)\nargs = parser.parse_args()\nfirst = 0\n'
        + 'if args.resume_from_checkpoint == "latest":\n'
        + '    first = max(int(p.name.rpartition("-")[2]) for p in Path(args.output_dir).glob("checkpoint-*") if saved(int(p.name.rpartition("-")[2])))'
        + END,
        words=(*BATCH, "--resume-knob", "--resume_from_checkpoint=latest"),
        resumes="--resume_from_checkpoint=latest",
    ),
    "a switch with or without a path": Style(
        LOOP
        + ONE_FILE
        + PARSER
        + 'parser.add_argument("--resume", nargs="?", const="latest", default=None)\nargs = parser.parse_args()\n'
        + 'first = torch.load("out/ckpt.pt")["step"] if args.resume == "latest" else 0'
        + END,
        words=(*BATCH, "--resume-knob", "--resume"),
        resumes="--resume",
    ),
    "nanoGPT": Style(
        'out_dir = "out"\ninit_from = "scratch"\nbatch_size = 8\ngradient_accumulation_steps = 2\n'
        'exec(open("configurator.py").read())\n'
        + LOOP
        + ONE_FILE
        + 'if init_from == "scratch":\n    first = 0\nelif init_from == "resume":\n    first = torch.load("out/ckpt.pt")["step"]\n'
        + "train(batch_size, gradient_accumulation_steps, first, save, saved)\n",
        words=(
            *("--batch-knob", "--batch_size", "--accumulation-knob", "--gradient_accumulation_steps"),
            *("--resume-knob", "--init_from=resume"),
        ),
        args=("--batch_size=8", "--gradient_accumulation_steps=2"),
        resumes="--init_from=resume",
        files=(
            (
                "configurator.py",
                CONFIGURATOR,
            ),
        ),
    ),
    "a step": Style(
        LOOP
        + NUMBERED
        + PARSER
        + 'parser.add_argument("--resume_step", type=int, default=0)\nargs = parser.parse_args()\n'
        + 'first = torch.load(f"out/model_{args.resume_step:06d}.pt")["step"] if args.resume_step else 0'
        + END,
        words=(*BATCH, "--resume-knob", "--resume_step=STEP"),
        resumes="--resume_step=10",
    ),
    "by itself": Style(
        LOOP
        + ONE_FILE
        + PARSER
        + 'args = parser.parse_args()\nfirst = 0\nif os.path.exists("out/ckpt.pt"):\n    first = torch.load("out/ckpt.pt")["step"]'
        + END,
        words=(*BATCH, "--self-resuming"),
    ),
    "declared": Style(
        LOOP
        + ONE_FILE
        + PARSER
        + 'args = parser.parse_args()\nfirst = torch.load("out/ckpt.pt")["step"] if getattr(os, "path").isfile("out/ckpt.pt") else 0'
        + END,
        words=(*BATCH, "--self-resuming"),
    ),
}


def told(cwd: Path, rank: int = 0) -> list[tuple[int, int, int]]:
    """(micro-batch, accumulation, step that it continues from) of each launch, as the script itself had them."""
    lines = (cwd / f"told.{rank}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(one["micro"], one["accumulation"], one["first"]) for one in map(json.loads, lines)]


def lay_out(cwd: Path, style: Style) -> str:
    (cwd / "train.py").write_text(style.source, encoding="utf-8")
    for name, text in style.files:
        (cwd / name).write_text(text, encoding="utf-8")
    return "train.py"


def check(cwd: Path, style: Style) -> None:
    done, _run, state = run_headless(
        "--nproc-per-node", "2", *style.words, lay_out(cwd, style), *style.args, cwd=cwd
    )
    assert done.code == 0, done.out + done.err
    first, second = state.attempts
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == ("cuda_oom", 1)
    for rank in (0, 1):
        assert told(cwd, rank) == [(8, 2, 0), (4, 4, 10)]
    before, after = (view.argv[view.argv.index("train.py") + 1 :] for view in (first, second))
    assert not any("--resume" in word or "init_from" in word for word in before), "there is no checkpoint yet"
    resumes = [word for word in after if "--resume" in word or "init_from" in word]
    assert resumes == ([style.resumes.format(cwd=cwd)] if style.resumes else [])
    assert second.batch is not None
    assert (second.batch.micro_batch_per_rank, second.batch.accumulation_steps) == (4, 4)
    assert second.first_step == 11
    assert second.resume_at is not None
    assert second.went_on
    assert isinstance(state.condition, Finished)


@pytest.mark.e2e
@pytest.mark.parametrize("style", first(4, sorted(STYLES)))
def test_each_style_goes_on_from_its_checkpoint(tmp_path: Path, style: str) -> None:
    check(tmp_path, STYLES[style])


@pytest.mark.e2e
def test_where_nothing_is_known_of_a_resume_nothing_restarts_by_itself_after_a_step(tmp_path: Path) -> None:
    style = Style(STYLES["declared"].source, (*BATCH, "--batch-scope", "per_rank", "--no-instrument"))
    done, _run, state = run_headless(
        "--nproc-per-node", "2", *style.words, lay_out(tmp_path, style), *style.args, cwd=tmp_path
    )
    assert done.code == 1, done.out
    assert len(state.attempts) == 1
    assert "--resume-knob" in done.out


@pytest.mark.e2e
def test_a_held_run_is_restarted_with_its_offer_by_one_request(tmp_path: Path) -> None:
    """Enter on its card: nothing is known of a resume, as it is not measured that the script has one, and a person wants it."""
    style = Style(STYLES["declared"].source, (*BATCH, "--batch-scope", "per_rank", "--no-instrument"))
    script = lay_out(tmp_path, style)
    start = ("run", "--detach", "--python", sys.executable, "--nproc-per-node", "2")
    words = (*start, *style.words, script, *style.args)
    done = stoker(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    run = RunPaths(tmp_path / "runs" / done.out.strip())
    held = wait_for_state(run, HeldOpen, 90)
    assert isinstance(held.condition, HeldOpen)
    assert held.condition.decision is not None
    assert held.condition.decision.change is not None
    assert held.condition.decision.change.batch is not None
    control.send(run.control, ev.RequestKind.RESTART_WITH, args=control.RequestArgs(offered=True))
    state = wait_for_state(run, Finished, 90)
    assert isinstance(state.condition, Finished)
    assert state.condition.exit_code == 0, state.condition
    assert told(tmp_path) == [(8, 2, 0), (4, 4, 10)]


@pytest.mark.e2e
def test_b_on_a_live_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = ("run", "--no-ui", "--python", sys.executable, "--nproc-per-node", "2", "--env", "LIMIT=99")
    slow = replace(STYLES["a path"], source=STYLES["a path"].source.replace("0.03", "0.15"))
    with background(*words, *slow.words, lay_out(tmp_path, slow), *slow.args, cwd=tmp_path):
        run = wait_for_run(tmp_path)
        wait_for_step(run, 12)
        control.send(run.control, ev.RequestKind.RESTART_WITH, args=control.RequestArgs(micro_batch=2))
        state = wait_for_state(run, Finished, 90)
    assert isinstance(state.condition, Finished)
    assert state.condition.exit_code == 0, state.condition
    (_, (micro, accumulation, first)) = told(tmp_path)
    assert (micro, accumulation) == (2, 8)
    assert first >= 10
    assert state.attempts[1].first_step == first + 1
    assert read_state(run.node().journal).attempts[1].resume == str(tmp_path / "out" / "ckpt.pt")
