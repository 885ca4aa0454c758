"""From `stoker init` on an unknown script to a charted, restartable run in a real terminal, in under two minutes and without editing a file."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
import tomllib
from pathlib import Path

import pytest

from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished, RunState
from tests.integration.harness import STOKER, wait_for_run
from tests.integration.test_restarts_asked_for import A_PATH, told
from tests.views.tui.test_tmux import Tmux, tmux, whole

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt install tmux"),
]
# What the issue of a first run promises, from the command to a charted loss.
TWO_MINUTES_S = 120.0
LOOP = """
import json, os, time
from pathlib import Path

def train(micro, accumulation, out, first):
    for step in range(first + 1, 2001):
        time.sleep(0.1)
        if int(os.environ.get("RANK", "0")) == 0:
            report(step)
            if step % 5 == 0:
                Path(out).mkdir(exist_ok=True)
                Path(out, "part").write_text(json.dumps({"step": step, "batch": micro * accumulation}))
                os.replace(Path(out, "part"), Path(out, "last.json"))

def first_of(out):
    last = Path(out, "last.json")
    return json.loads(last.read_text())["step"] if last.exists() else 0
"""
HF = (
    """
import argparse, sys

def report(step):
    print(f"  0%|          | {step}/2000 [00:01<00:10,  9.90it/s]", end="\\r", file=sys.stderr, flush=True)
    print({"loss": round(3.0 / step, 4), "grad_norm": 1.5, "learning_rate": 1e-3, "epoch": round(step / 100, 2)}, flush=True)

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--output_dir", default="out")
"""
    + LOOP
    + """
args = parser.parse_args()
first = first_of(args.output_dir)
train(args.per_device_train_batch_size, args.gradient_accumulation_steps, args.output_dir, first)
"""
)


def begin(pane: Tmux, ranks: str, arguments: str = "") -> float:
    """Types the command and the first answers; when that was."""
    began = time.monotonic()
    pane.type(f"{shlex.join(STOKER)} init")
    pane.wait_for("which script trains?", "train.py")
    pane.keys("Enter")
    pane.wait_for("what follows train.py")
    pane.type(arguments) if arguments else pane.keys("Enter")
    pane.wait_for("how many ranks")
    pane.type(ranks)
    pane.wait_for("how many machines?", "known so far")
    pane.keys("Enter")
    return began


def write_and_start(pane: Tmux, folder: Path) -> RunPaths:
    """The last answers: the file, then the run's dashboard with steps and a loss."""
    pane.wait_for("write the job file as?")
    pane.keys("Enter")
    pane.wait_for("stoker run --config train.toml", "start it now?")
    pane.keys("Enter")
    run = wait_for_run(folder)
    pane.wait_for("attempt 1", "stepping", "loss", deadline_s=TWO_MINUTES_S)
    pane.until(lambda: re.search(r"loss.* [0-3]\.\d", pane.screen()), "a loss with its number", TWO_MINUTES_S)
    pane.until(lambda: re.search("[\u2801-\u28ff]", pane.screen()), "its curve", TWO_MINUTES_S)
    return run


def state_of(run: RunPaths) -> RunState:
    return read_state(run.node().journal)


def stop(pane: Tmux, run: RunPaths) -> None:
    pane.keys("s")
    pane.until(lambda: "y yes" in pane.screen() or "stopping" in pane.screen(), "the question or the stop")
    if "y yes" in pane.screen():
        pane.keys("y")
    pane.until(lambda: isinstance(state_of(run).condition, Finished), "the end", 90)
    pane.keys("q")
    pane.wait_for("stopped on request")


def test_a_foreign_script_becomes_a_charted_restartable_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HF, encoding="utf-8")
    with tmux(tmp_path, (120, 44), {"VIRTUAL_ENV": sys.prefix}) as pane:
        began = begin(pane, "1", "--per_device_train_batch_size 8 --gradient_accumulation_steps 2")
        pane.wait_for("--per_device_train_batch_size 8 → 4")
        pane.until(
            lambda: any(
                text in pane.screen() for text in ("how does the script continue", "write the job file")
            ),
            "the next question",
        )
        if "how does the script continue" in pane.screen():
            pane.type("self")
        run = write_and_start(pane, tmp_path)
        took = time.monotonic() - began
        assert took < TWO_MINUTES_S
        print(f"{took:.1f} s from `stoker init` to a charted loss")
        pane.until(lambda: (state_of(run).attempts[0].last_step or 0) > 10, "ten steps")

        pane.keys("r")
        pane.until(
            lambda: "y yes" in pane.screen() or len(state_of(run).attempts) == 2,
            "the question or the restart",
        )
        if "y yes" in pane.screen():
            pane.keys("y")
        pane.wait_for("attempt 2", "stepping", "loss", deadline_s=90)
        pane.until(lambda: state_of(run).attempts[1].first_step is not None, "its first step")
        assert (state_of(run).attempts[1].first_step or 0) > 10
        stop(pane, run)
    assert tomllib.loads((tmp_path / "train.toml").read_text(encoding="utf-8"))["run"]["script"] == "train.py"
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == HF


def test_an_argparse_script_that_runs_out_of_memory_goes_on_smaller_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    """Rank 1 runs out at step 13; all that a person did was to answer."""
    source = A_PATH
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    with tmux(tmp_path, (120, 44), {"VIRTUAL_ENV": sys.prefix}) as pane:
        began = begin(pane, "2")
        pane.wait_for("known after the first step", "how does the script continue")
        pane.type("--resume=PATH")
        pane.wait_for("write the job file as?")
        pane.keys("Enter")
        pane.wait_for("start it now?")
        pane.keys("Enter")
        run = wait_for_run(tmp_path)
        pane.until(
            lambda: state_of(run).attempts and state_of(run).attempts[0].last_step, "steps", TWO_MINUTES_S
        )
        assert time.monotonic() - began < TWO_MINUTES_S
        pane.wait_for("attempt 2", deadline_s=120)
        pane.until(lambda: isinstance(state_of(run).condition, Finished), "the end", 120)
        whole(pane.wait_for("finished"))
        pane.keys("q")
        pane.wait_for("finished")
    first, second = state_of(run).attempts
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == ("cuda_oom", 1)
    assert told(tmp_path) == [(8, 2, 0), (4, 4, 10)]
    assert second.first_step == 11
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == source
