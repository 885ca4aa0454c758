"""The example that is no language model: supervised like any script, and resumed where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.run.events import Outcome
from supervisor.run.state import Finished
from tests.integration.harness import ROOT, run_headless
from tests.trainer.runs import environment

IMAGES = ROOT / "trainer" / "examples" / "images.py"


def test_it_stays_short() -> None:
    assert len(IMAGES.read_text().splitlines()) < 150


@pytest.mark.e2e
def test_stoker_supervises_it(tmp_path: Path) -> None:
    args = ("--batch-size", "64", "--steps", "20", "--save-every", "10", "--resume", "auto")
    done, _, state = run_headless("--nproc-per-node", "2", str(IMAGES), *args, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert isinstance(state.condition, Finished)
    assert state.condition.outcome is Outcome.SUCCEEDED
    attempt = state.attempts[-1]
    assert attempt.last_step == 20
    assert attempt.shown_batch is not None
    assert attempt.shown_batch.global_batch == 128
    assert attempt.first_loss is not None
    assert attempt.last_loss is not None
    assert attempt.last_loss < attempt.first_loss


@pytest.mark.e2e
def test_it_resumes_and_refuses_a_batch_beyond_its_data(tmp_path: Path) -> None:
    def images(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(IMAGES), *args],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    assert images("--steps=10").returncode == 0
    again = images("--steps=20", "--resume=auto")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("step 20/20")
    refused = images("--batch-size=5000")
    assert refused.returncode == 1
    assert "is more than a rank's 4096 images" in refused.stderr
