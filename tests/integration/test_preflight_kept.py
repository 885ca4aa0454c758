"""What pre-flight found wanting is in the journal, however the run was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.records import FindingLevel
from supervisor.run.state import Finished
from tests.integration.harness import run_headless, stoker, wait_for_state

COMMAND = ("--", sys.executable, "-c", "print('done')")


@pytest.mark.parametrize("detached", [True, False])
def test_a_run_that_cannot_be_restarted_says_so(tmp_path: Path, detached: bool) -> None:
    if detached:
        done = stoker("run", "--detach", "--python", sys.executable, *COMMAND, cwd=tmp_path)
        assert done.code == 0, done.err
        assert "restarts: " in done.err
        run = RunPaths(tmp_path / "runs" / done.out.strip())
    else:
        _, run, _ = run_headless(*COMMAND, cwd=tmp_path)
    state = wait_for_state(run, Finished)
    (finding,) = [found for found in state.findings if found.check == "restarts"]
    assert finding.level is FindingLevel.WARNING
    assert "--resume-knob" in finding.what
