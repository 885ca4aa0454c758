"""What pre-flight found wanting is in the journal, however the run was started."""

from __future__ import annotations

import sys
from pathlib import Path

from supervisor.run.paths import RunPaths
from supervisor.run.records import FindingLevel
from supervisor.run.state import Finished
from tests.integration.harness import stoker, wait_for_state

COMMAND = ("--", sys.executable, "-c", "print('done')")


def test_a_run_that_cannot_be_restarted_says_so(tmp_path: Path) -> None:
    done = stoker("run", "--detach", "--python", sys.executable, *COMMAND, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "restarts: " in done.err
    state = wait_for_state(RunPaths(tmp_path / "runs" / done.out.strip()), Finished)
    (finding,) = [found for found in state.findings if found.check == "restarts"]
    assert finding.level is FindingLevel.WARNING
    assert "--resume-knob" in finding.what
