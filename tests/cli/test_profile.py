"""`stoker profile`: a trace of a live training, and what is said where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.integration.harness import background, stoker, wait_for_run, wait_for_step

SMALL = ("--depth=1", "--model_dim=32", "--max_seq_len=32", "--device_batch_size=2", "--corpus_mib=1")


@pytest.mark.e2e
def test_a_live_training_is_traced_and_goes_on(tmp_path: Path) -> None:
    words = (
        "run",
        "--no-ui",
        "--no-retry",
        "--python",
        sys.executable,
        "--nproc-per-node",
        "2",
        "-m",
        "trainer",
    )
    with background(*words, *SMALL, "--device=cpu", "--num_iterations=1000000", cwd=tmp_path):
        run = wait_for_run(tmp_path)
        wait_for_step(run, 5)
        done = stoker("profile", cwd=tmp_path)
        assert done.code == 0, done.err
        assert str(run.artifacts) in done.out
        assert wait_until(lambda: len(list(run.artifacts.glob("trace-*-rank?.json"))) == 2, 120)
        paths = list(run.artifacts.glob("trace-*-rank?.json"))
        assert all(json.loads(path.read_text())["traceEvents"] for path in paths)
        reached = wait_for_step(run, 5).attempts[-1].last_step or 0
        wait_for_step(run, reached + 5)
        assert stoker("stop", "--now", cwd=tmp_path).code == 0
    done = stoker("profile", cwd=tmp_path)
    assert done.code == 3
    assert "nothing of it is trained now" in done.err
