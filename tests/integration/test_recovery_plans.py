"""Recovery as a whole: probes of the batch, cycles, explanations, a silent script's checkpoint."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from supervisor.run import events as ev
from supervisor.run.records import DecisionKind
from supervisor.run.state import Finished
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    SCRIPTS,
    background,
    decision_of,
    detached,
    end_of,
    facts,
    run_headless,
    stoker,
    wait_for_state,
)

# It runs out of memory at step 4 with more than six samples, and waits for `gate` where that is named.
DIES_LATER = """
import argparse, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=16)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--gate", default="")
args = parser.parse_args()
while args.gate:
    open(args.gate, "w").close()
    time.sleep(0.1)
for step in range(1, 31):
    if step == 4 and args.per_device_train_batch_size > 6:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    print(f"step {step} loss {3 / step:.4f}", flush=True)
    time.sleep(0.02)
"""
BATCH = ("--per_device_train_batch_size=8", "--gradient_accumulation_steps=1")
FITS = ("--nproc-per-node=1", "--fit-batch", "--", sys.executable, "train.py", *BATCH)


@pytest.mark.e2e
def test_a_script_that_dies_at_step_4_is_not_called_fitting(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DIES_LATER, encoding="utf-8")
    done, run, state = run_headless(*FITS, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert {p.micro_batch: p.fitted for p in state.probes} == {4: True, 8: False}
    batch = not_none(not_none(state.fitted).batch)
    assert (batch.micro_batch_per_rank, batch.accumulation_steps) == (4, 2)
    assert [view.batch for view in state.attempts] == [batch], "it starts with what fits"
    assert "largest that fits" in done.out
    assert sum(isinstance(fact, ev.ProbeEnded) and fact.steps >= 10 for fact in facts(run)) == 1


@pytest.mark.thorough
def test_a_stop_ends_a_probe_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DIES_LATER, encoding="utf-8")
    run = detached(tmp_path, *FITS, f"--gate={tmp_path / 'probing'}")
    assert wait_until((tmp_path / "probing").exists, 60)
    assert stoker("stop", run.run_id, cwd=tmp_path).code == 0
    state = wait_for_state(run, Finished, 30)
    assert end_of(state).exit_code == 5
    assert not state.attempts


CRASHES = """
import os, signal
with open("done", "a") as file:
    file.write(".")
count = os.path.getsize("done")
print(f"step {count}/6 loss: {1 / count:.4f}", flush=True)
if count < 6:
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.e2e
@pytest.mark.fault("recovery", "a script that resumes fails again and again", "restarted until it finishes")
def test_cycles_of_crash_and_restart_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(CRASHES, encoding="utf-8")
    (tmp_path / "stoker.toml").write_text("[policy.worker_crash]\ndelay_s = 0\n", encoding="utf-8")
    words = ("--resume-knob", "--resume=auto", "--", sys.executable, "-S", "job.py")
    with background("run", "--no-ui", *words, cwd=tmp_path) as process:
        keeper, held = psutil.Process(process.pid), list[tuple[int, int]]()
        while process.poll() is None:
            if (tmp_path / "done").exists():
                with contextlib.suppress(psutil.Error):
                    held.append((keeper.num_fds(), keeper.num_threads()))
            time.sleep(0.05)
        assert process.returncode == 0
    assert (tmp_path / "done").read_text() == "." * 6
    settled = held[len(held) // 4 :]
    assert settled[-1][0] <= settled[0][0] + 8, "no descriptor a restart"
    assert settled[-1][1] <= settled[0][1] + 2, "no thread a restart"


CRASH_ONCE = """
import os, signal, sys
for step in range(3 if "--resume" in sys.argv else 1, 5):
    print(f"step {step}/4 loss: {4 / step:.3f}", flush=True)
    if step == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.e2e
def test_explain_says_what_was_and_what_would_have_been_decided(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(CRASH_ONCE, encoding="utf-8")
    done, run, state = run_headless(
        "--resume-knob", "--resume", "--", sys.executable, "crash.py", cwd=tmp_path
    )
    assert done.code == 0, done.out
    assert [a.decision.kind for a in state.attempts if a.decision] == [
        DecisionKind.RESTART,
        DecisionKind.SUCCEED,
    ]
    before = {p: p.stat().st_mtime_ns for p in run.root.rglob("*")}
    same = stoker("policy", "explain", cwd=tmp_path)
    assert same.code == 0, same.err
    restart, budget, end = [line for line in same.out.splitlines() if not line.strip().startswith("ended ")]
    assert restart.startswith("attempt 1: worker_crash/signal at step 2 → restart: ")
    assert budget.strip() == "budget, without progress: 1 of 3 (--max-retries)"
    assert end.startswith("attempt 2: healthy at step 4 → succeed")
    assert "was (" not in same.out, "nothing differs from what was done"
    (tmp_path / "other.toml").write_text('[policy.worker_crash]\nanswer = "hold"\n', encoding="utf-8")
    other = stoker("policy", "explain", run.run_id, "--config", "other.toml", cwd=tmp_path)
    assert "→ fail, exit code 1" in other.out
    assert "was (policy): restart" in other.out
    held = stoker("policy", "explain", run.run_id, "--config", "other.toml", "--interactive", cwd=tmp_path)
    assert "→ hold" in held.out
    assert {p: p.stat().st_mtime_ns for p in run.root.rglob("*")} == before, "nothing was run or written"
    assert stoker("policy", "explain", "nobody", cwd=tmp_path).code == 2
    assert stoker("policy", "explain", run.run_id, "--config", "missing.toml", cwd=tmp_path).code == 2


@pytest.mark.e2e
def test_a_silent_scripts_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    """A foreign script that leaves `checkpoint-15` and dies at step 18, with its flag declared."""
    script = str(SCRIPTS / "saves_like_hf.py")
    old = tmp_path / "out" / "checkpoint-900"
    old.mkdir(parents=True)
    (old / "model.safetensors").write_bytes(b"w")
    (old / "trainer_state.json").write_text('{"global_step": 900}')
    os.utime(old / "trainer_state.json", (1e9, 1e9))
    declared = ("--resume-knob", "--resume_from_checkpoint=PATH")
    done, _run, state = run_headless(
        "--nproc-per-node", "2", *declared, script, "--output_dir", "out", cwd=tmp_path
    )
    found = str(tmp_path / "out" / "checkpoint-15")
    assert state.checkpoint is not None
    decision = decision_of(state, 0)
    assert found in decision.reason
    assert done.code == 0, done.out + done.err
    assert len(state.attempts) == 2
    assert state.attempts[1].first_step == 16, "it continued, and did not start again"
    assert f"--resume_from_checkpoint={found}" in state.attempts[1].argv
    assert state.attempts[1].resume == found
    assert state.checkpoint.path == str(tmp_path / "out" / "checkpoint-30")
