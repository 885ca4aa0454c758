"""The main job, headless: out of memory on rank 1, named, restarted smaller, resumed, finished; and `--trial`, few steps of it and the command of the real run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from supervisor.run.events import Outcome, StopWhy
from supervisor.run.records import FailureClass
from tests.conftest import not_none
from tests.integration.harness import ROOT, end_of, run_headless


@pytest.mark.e2e
def test_the_demo_tells_its_story(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "demo" / "demo.toml")
    shorter = ("--num_iterations=56", "--eval_every=0")  # the story is told by step 40 or so
    done, run, state = run_headless("--config", config, *shorter, cwd=tmp_path, timeout_s=280)
    assert done.code == 0, done.out + done.err
    assert end_of(state).outcome is Outcome.SUCCEEDED
    first, second = state.attempts
    verdict = not_none(first.verdict)
    assert verdict.failure in {FailureClass.HOST_OOM, FailureClass.CUDA_OOM}
    assert verdict.rank == 1
    assert not_none(verdict.cause).line is not None
    assert first.batch is not None
    assert second.batch is not None
    assert second.batch.global_batch == first.batch.global_batch
    assert second.batch.micro_batch_per_rank < first.batch.micro_batch_per_rank
    assert second.resumed_step in first.checkpoint_steps
    assert second.resumed_step == max(first.checkpoint_steps)
    assert second.first_step == second.resumed_step + 1
    assert second.last_step == state.total_steps
    assert first.first_loss is not None
    assert second.last_loss is not None
    assert second.last_loss < 0.6 * first.first_loss
    for text in ("attempt 1", "verdict", "change", "micro-batch 16 → 8", "resumed", "loss", str(run.root)):
        assert text in done.out, text
    assert re.search("[\u2801-\u28ff]", done.out), "the curve is drawn, in braille"


PRINTS = """\
import time
for step in range(1, 100_000):
    time.sleep(0.05)
    print(f"step {step} loss {5 - step / 1000:.4f} lr 1e-3", flush=True)
"""
SAVES = """\
import argparse, os
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=100_000)
args = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, args.max_steps + 1):
    loss = model(torch.ones(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f} of {dist.get_world_size()}", flush=True)
os.makedirs("out", exist_ok=True)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "out/ckpt.pt")
dist.destroy_process_group()
"""


def real_run(out: str) -> str:
    """The command in the last line, without what `run_headless` adds."""
    label, _, command = out.splitlines()[-1].partition("  ")
    assert label == "real run"
    return command.replace(f" --python {sys.executable}", "").replace(" --no-ui", "")


@pytest.mark.e2e
def test_a_script_without_a_setting_for_its_steps_is_stopped_once_they_are_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTS)
    done, _, state = run_headless("--trial", "--nproc-per-node", "2", "train.py", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert end_of(state).outcome is Outcome.SUCCEEDED
    (attempt,) = state.attempts
    assert len(attempt.ranks) == 1
    assert not_none(attempt.stop).why is StopWhy.TRIAL
    assert attempt.last_step is not None
    assert 20 <= attempt.last_step < 2000
    assert f"steps     {attempt.last_step} seen: 1 to {attempt.last_step}" in done.out
    assert "no checkpoint was seen" in done.out
    step_ms = re.search(r"^step time (\d+) ms", done.out, re.MULTILINE)
    assert step_ms is not None, done.out
    assert 25 <= int(step_ms[1]) <= 500  # it sleeps for 50
    assert real_run(done.out) == "stoker run --nproc-per-node 2 train.py"


@pytest.mark.e2e
def test_a_script_with_a_setting_for_its_steps_ends_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    words = ("--nproc-per-node", "2", "train.py", "--max_steps", "5000")
    done, _, state = run_headless("--trial", "--trial-steps", "7", *words, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    (attempt,) = state.attempts
    assert (attempt.last_step, attempt.stop, attempt.exit_code) == (7, None, 0)
    assert "set       --max_steps is 7, in the real run 5000" in done.out
    said = next(line for line in done.out.splitlines() if line.startswith("saved"))
    assert said in {f"saved     a checkpoint{step}: {tmp_path}/out/ckpt.pt" for step in ("", " at step 7")}
    assert real_run(done.out) == "stoker run " + " ".join(words)
