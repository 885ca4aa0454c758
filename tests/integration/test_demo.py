"""The main job, headless: out of memory on rank 1, named, restarted smaller, resumed, finished."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor.run.events import Outcome
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
