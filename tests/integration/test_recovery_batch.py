"""Foreign scripts under a memory cap of 13 samples: restarted smaller at the same global batch, by words or by a file.

Other styles: test_measured_restarts.py.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.records import FailureClass
from supervisor.run.state import RunState
from tests.conftest import not_none
from tests.integration.harness import SCRIPTS, Done, end_of, facts, run_headless

STYLES = SCRIPTS / "styles"
# Global batch 48 on one rank: 16 does not fit. What failed says no numbers of memory, so the next is the half, 8.
UNBROKEN_LOSS = 0.755208


@dataclass(frozen=True)
class Style:
    """A script, its arguments, the settings of batch and accumulation, and the words by which the second launch says 8 and 6."""

    script: str
    args: tuple[str, ...]
    batch: tuple[str, str]
    changed: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def declared(self) -> tuple[str, ...]:
        return ("--batch-knob", self.batch[0], "--accumulation-knob", self.batch[1])


CONFIG = """\
# how we train
train:
  batch_size: 16   # a rank holds this many
  grad_accum_steps: 3
eval:
  batch_size: 64
"""
ARGPARSE = Style(
    "argparse_style.py",
    ("--batch-size", "16", "--grad-accum", "3"),
    ("--batch-size", "--grad-accum"),
    ("--batch-size 8", "--grad-accum 6"),
)
YAML = Style(
    "yaml_style.py",
    ("--config", "conf/train.yaml"),
    ("conf/train.yaml#train.batch_size", "conf/train.yaml#train.grad_accum_steps"),
    files=(("conf/train.yaml", CONFIG),),
)


def told(folder: Path) -> list[tuple[int, int]]:
    """(micro-batch, accumulation) of every launch, as the script itself saw them."""
    lines = (folder / "tell").read_text(encoding="utf-8").splitlines()
    return [(line["micro"], line["accumulation"]) for line in map(json.loads, lines)]


def launch(tmp_path: Path, style: Style, *flags: str) -> tuple[Done, list[ev.Event], RunState]:
    for name, text in style.files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = (
        *flags,
        *style.declared,
        str(STYLES / style.script),
        *style.args,
        "--tell",
        str(tmp_path / "tell"),
    )
    done, run, state = run_headless(*words, cwd=tmp_path)
    return done, facts(run), state


@pytest.mark.parametrize(
    "style", [ARGPARSE, pytest.param(YAML, marks=pytest.mark.e2e)], ids=["words", "a file"]
)
def test_it_restarts_smaller_with_its_own_words(tmp_path: Path, style: Style) -> None:
    done, journal, state = launch(tmp_path, style)
    assert done.code == 0, done.out + done.err
    first, second = state.attempts
    assert not_none(first.verdict).failure is FailureClass.HOST_OOM
    assert told(tmp_path) == [(16, 3), (8, 6)]
    assert second.batch is not None
    assert (second.batch.micro_batch_per_rank, second.batch.global_batch) == (8, 48)
    assert second.last_loss == pytest.approx(UNBROKEN_LOSS, abs=1e-4), "the loss of the unbroken run"
    words = " ".join(second.argv)
    assert all(word in words for word in style.changed), words
    planned = [line for fact in journal if isinstance(fact, ev.ChangePlanned) for line in fact.lines]
    assert any(line.startswith("- ") and "16" in line for line in planned), planned
    assert any(line.startswith("+ ") and "8" in line for line in planned), planned
    before_launch = [
        type(fact).__name__ for fact in journal if isinstance(fact, (ev.ChangePlanned, ev.LaunchIntended))
    ]
    assert before_launch == ["LaunchIntended", "ChangePlanned", "LaunchIntended"], "said before it is made"
    assert "change: + " in done.out
    for name, text in style.files:
        assert (tmp_path / name).read_text(encoding="utf-8") == text, "the user's own file is never edited"


@pytest.mark.e2e
def test_fit_batch_finds_the_largest_divisor_and_starts_with_it(tmp_path: Path) -> None:
    done, journal, state = launch(tmp_path, ARGPARSE, "--fit-batch")
    assert done.code == 0, done.out + done.err
    probes = [fact for fact in journal if isinstance(fact, ev.ProbeEnded)]
    count = 10  # divisors of 48
    assert len(probes) <= ceil(log2(count)) + 2, probes
    assert all(probe.fitted == (probe.micro_batch <= 13) for probe in probes)
    assert len(state.attempts) == 1
    assert state.attempts[0].batch is not None
    assert state.attempts[0].batch.micro_batch_per_rank == 12
    assert told(tmp_path)[-1] == (12, 4)
    assert end_of(state).outcome is Outcome.SUCCEEDED
    assert "largest that fits" in done.out


DIES_LATER = """
import argparse, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=16)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
args = parser.parse_args()
for step in range(1, 31):
    if step == 4 and args.per_device_train_batch_size > 6:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    print(f"step {step} loss {3 / step:.4f}", flush=True)
    time.sleep(0.02)
"""


@pytest.mark.e2e
def test_a_script_that_dies_at_step_4_is_not_called_fitting(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DIES_LATER, encoding="utf-8")
    words = ("--nproc-per-node=1", "--fit-batch", "--", sys.executable, "train.py")
    batch = ("--per_device_train_batch_size=8", "--gradient_accumulation_steps=1")
    done, run, state = run_headless(*words, *batch, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert {p.micro_batch: p.fitted for p in state.probes} == {4: True, 8: False}
    assert state.fitted is not None
    assert state.fitted.batch is not None
    assert (state.fitted.batch.micro_batch_per_rank, state.fitted.batch.accumulation_steps) == (4, 2)
    assert len(state.attempts) == 1
    assert sum(isinstance(fact, ev.ProbeEnded) and fact.steps >= 10 for fact in facts(run)) == 1
