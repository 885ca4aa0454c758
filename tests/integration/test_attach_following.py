"""An observer's memory does not grow with what a log says: the short form of `make soak` (bench/follow.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, environment


@pytest.mark.e2e
@pytest.mark.fault("logs and load", "a log of hundreds of MB is followed", "memory stays bounded")
def test_memory_is_bounded_while_a_log_is_followed(tmp_path: Path) -> None:
    kept = tmp_path / "follow.json"
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "follow.py"),
            *("--minutes", "0.55", "--rotate-mib", "7", "--bound-mib", "8", "--keep", str(kept)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert done.returncode == 0, found
    assert found["lines"] >= 330_000
    assert found["rotations"] >= 3
    assert found["growth_mib"] <= 8, "between the second and the last fifth of the time"
    assert found["last_step_seen"] == found["last_step_written"]
