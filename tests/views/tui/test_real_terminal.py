"""The app on a real run in a real pseudo-terminal: the demo's story, acted by keys."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.state import Finished, HeldOpen, Running
from tests.conftest import wait_until
from tests.integration.harness import (
    JOB,
    facts,
    wait_for_run,
    wait_for_state,
)
from tests.views.tui import recorded
from tests.views.tui.wire import terminal


def has_reached(run: RunPaths, step: int) -> bool:
    """Whether the newest attempt has done `step`."""
    attempt = read_state(run.node().journal).attempt
    return attempt is not None and attempt.last_step is not None and attempt.last_step >= step


def gated_run(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The words that start a run of 10 steps which waits after step 5 until the file `gate` exists."""
    gate = folder / "gate"
    flags = ("--python", sys.executable, "--nproc-per-node", "2")
    return gate, ("run", *flags, JOB, "--gate", str(gate), "--steps", "10")


@pytest.mark.e2e
def test_a_killed_screen_changes_nothing(tmp_path: Path) -> None:
    gate, args = gated_run(tmp_path)
    with terminal(*args, cwd=tmp_path) as screen:
        run = wait_for_run(tmp_path)
        screen.until(lambda: has_reached(run, 5))
        os.kill(screen.process.pid, 9)
        assert wait_until(lambda: not screen.process.isalive(), 10)
    assert keeper_is_alive(run.node().lock)
    gate.touch()
    state = wait_for_state(run, Finished)
    assert isinstance(state.condition, Finished)
    assert state.condition.exit_code == 0


CRASH = """
import os, sys, time, traceback
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def told(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    open("line.tmp", "w").write(str(time.time()))
    os.rename("line.tmp", "line")
if rank == 1:
    sys.excepthook = told
else:
    import signal
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(60))  # a peer in a kernel heeds nothing
for step in range(1, 41):
    dist.all_reduce(torch.ones(10))
    time.sleep(0.05)
    print(f"step {step} loss {4 / step:.4f}", flush=True)
    if step == 20 and rank == 1:
        try:
            raise ValueError("a batch that is skipped")
        except ValueError:
            traceback.print_exc()
    while step == 30 and not os.path.exists("gate"):
        time.sleep(0.01)
if rank == 1:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
time.sleep(60)
"""


@pytest.mark.e2e
def test_a_rank_that_dies_is_said_at_once_and_no_stall_is(tmp_path: Path) -> None:
    """Within a second of the end of its process, which takes torch half a second or more; here with slack for a busy machine."""
    (tmp_path / "train.py").write_text(CRASH, encoding="utf-8")
    args = ("run", "--no-check", "--python", sys.executable, "--nproc-per-node", "2", "train.py")
    with terminal(*args, cwd=tmp_path) as screen:
        run = wait_for_run(tmp_path)
        screen.until(lambda: has_reached(run, 25))
        known = [type(fact) for fact in facts(run)]
        assert ev.EvidenceSeen in known, "the exception that was caught is in the log"
        assert ev.RankFailing not in known, "and is no failure"
        (tmp_path / "gate").touch()
        screen.wait_for("✗ rank 1 ", deadline_s=60)
        screen.wait_for("so far", "waiting for torchrun to end")
        assert isinstance(read_state(run.node().journal).condition, Running), "torchrun has not ended"
        seen_s = time.time() - float((tmp_path / "line").read_text())
        assert seen_s < 15, "about a second on a quiet machine"
        screen.wait_for("rank 1 died: torch.OutOfMemoryError: CUDA out of memory")
        screen.until_state(run, HeldOpen)
        screen.wait_for("waiting for you")  # before that the screen would not know what `s` ends
        screen.press("s")
        screen.wait_for("end the run now?")
        screen.press("y")
        screen.until_state(run, Finished)
    journalled = facts(run)
    (failing,) = [fact for fact in journalled if isinstance(fact, ev.RankFailing)]
    assert failing.failure is FailureClass.CUDA_OOM
    assert not [fact for fact in journalled if isinstance(fact, ev.StallFlagged)]
    attempt = read_state(run.node().journal).attempt
    assert attempt is not None
    assert attempt.verdict is not None
    assert (attempt.verdict.failure, attempt.verdict.rank) == (FailureClass.CUDA_OOM, 1)


PATIENT = """
import argparse, os, time
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--lr", type=float, default=1.0)
args = parser.parse_args()
dist.init_process_group("gloo")
while not os.path.exists("gate"):
    time.sleep(0.01)
for step in range(1, 10_000):
    print(f"step {step} loss {4 / step:.4f}", flush=True)
    time.sleep(0.05)
"""


def test_a_replay_names_what_it_reads_until_it_is_shown(tmp_path: Path) -> None:
    run = recorded.failed(tmp_path / "20261121-1412-brave-otter")
    with terminal("replay", str(run.root), cwd=tmp_path) as screen:
        screen.process.expect_exact("reading the recording of 20261121-1412-brave-otter…".encode())
        screen.wait_for("▶ replay")
        screen.press("q")
        assert screen.wait_for_exit() == 0


@pytest.mark.e2e
def test_another_restart_asks_first_and_launches_what_was_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PATIENT, encoding="utf-8")
    words = ("--batch_size", "8", "--gradient_accumulation_steps", "2", "--lr", "1.0")
    flags = ("--python", sys.executable, "--nproc-per-node", "2", "--batch-scope", "per_rank")
    args = ("run", "--no-check", *flags, "train.py", *words)
    with terminal(*args, cwd=tmp_path) as screen:
        run = wait_for_run(tmp_path)
        screen.wait_for("attempt 1 · ● rendezvous")  # a key before that is refused, with its reason
        screen.press("r")
        screen.wait_for("restart? this ends attempt 1 before its first step")
        screen.press("n")
        (tmp_path / "gate").touch()
        screen.until(lambda: has_reached(run, 3))
        screen.press("b")
        screen.wait_for("this ends attempt 1 at step", "from the first step")
        screen.press("\r")
        screen.wait_for("restart? stoker cannot tell whether the script resumes")
        screen.press("y")
        screen.until(lambda: len(read_state(run.node().journal).attempts) == 2)
        screen.until(lambda: has_reached(run, 3))
        screen.wait_for("attempt 2", "stepping")
        screen.press("e")
        screen.wait_for("--batch_size 4 --gradient_accumulation_steps 4 --lr 1.0", "this ends attempt 2")
        screen.press("\x7f\x7f\x7f0.5")  # at once, as a slow line delivers it: each is done before the next
        screen.wait_for("+ --lr 0.5")
        screen.press("\x1b[H" + "\x1b[C" * len("--batch_size ") + "\x1b[3~2")  # Home, to the number, Delete
        screen.wait_for("+ --batch_size 2")
        screen.press("\r")
        screen.until(lambda: len(read_state(run.node().journal).attempts) == 3)
        state = screen.until_state(run, Running)
        assert state.attempt is not None
        typed = ("--batch_size", "2", "--gradient_accumulation_steps", "4", "--lr", "0.5")
        assert state.attempt.argv[-6:] == typed, "nothing of what was set before comes back over it"
        assert state.attempt.batch is not None
        batch = state.attempt.batch
        assert (batch.micro_batch_per_rank, batch.accumulation_steps) == (2, 4), "as typed"
        screen.wait_for("attempt 3 · ● stepping")
        screen.press("S")
        screen.wait_for("stop at once?")
        screen.press("y")
        screen.until_state(run, Finished)
