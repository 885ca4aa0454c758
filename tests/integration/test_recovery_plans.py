"""Recovery as a whole: what fitted before, a probe that is stopped, cycles, explanations."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from supervisor.run.records import DecisionKind
from supervisor.run.state import Finished
from tests.conftest import wait_until
from tests.integration.harness import (
    SCRIPTS,
    background,
    decision_of,
    detached,
    end_of,
    run_headless,
    stoker,
    wait_for_state,
)

STYLES = SCRIPTS / "styles"
DECLARED = ("--batch-knob", "--batch-size", "--accumulation-knob", "--grad-accum")


@pytest.mark.thorough
def test_the_next_start_says_what_fitted_and_applies_nothing(tmp_path: Path) -> None:
    script = (str(STYLES / "argparse_style.py"), "--batch-size", "16", "--grad-accum", "3")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    done, _, _ = run_headless(*DECLARED, "--", sys.executable, *script, cwd=first)
    assert done.code == 0, done.out
    done, _, state = run_headless(*DECLARED, "--", sys.executable, *script, cwd=second)
    assert done.code == 0, done.out
    assert "micro-batch 16 ran out of memory in an earlier run" in done.out
    assert "--micro-batch 8" in done.out
    assert state.attempts[0].batch is not None
    assert state.attempts[0].batch.micro_batch_per_rank == 16, "proposed, never applied"
    assert "it fitted before" in state.attempts[1].reason


@pytest.mark.thorough
def test_a_stop_ends_a_probe_with_all_that_it_started(tmp_path: Path) -> None:
    words = ("--batch-size", "16", "--grad-accum", "3", "--tell", str(tmp_path / "tell"), "--limit", "99")
    (tmp_path / "stoker.toml").write_text("[batch]\nfit_steps = 1000\n", encoding="utf-8")
    script = str(STYLES / "argparse_style.py")
    run = detached(tmp_path, "--fit-batch", *DECLARED, script, *words)
    assert wait_until((tmp_path / "tell").exists, 60)
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
