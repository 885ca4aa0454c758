"""What pre-flight found wanting is in the journal, however the run was started."""

from __future__ import annotations

import os
import sys
import time
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


def test_what_a_script_cannot_do_is_warned_of_once(tmp_path: Path) -> None:
    """A resume flag that is not known is warned of at the first start of a script, and again once the script was edited."""
    script = tmp_path / "train.py"
    text = 'import argparse\nargs = argparse.ArgumentParser()\nargs.add_argument("--resume")\nprint(args.parse_args())\n'
    script.write_text(text, encoding="utf-8")

    def started(*args: str) -> tuple[bool, FindingLevel]:
        command = ("--", sys.executable, "train.py", *args)
        done = stoker("run", "--detach", "--python", sys.executable, *command, cwd=tmp_path)
        assert done.code == 0, done.err
        state = wait_for_state(RunPaths(tmp_path / "runs" / done.out.strip()), Finished)
        (finding,) = [found for found in state.findings if found.check == "restarts"]
        return "stoker run: restarts: " in done.err, finding.level

    assert started() == (True, FindingLevel.WARNING)
    assert started() == (False, FindingLevel.INFO)
    assert started() == (False, FindingLevel.INFO)
    later = time.time() + 60
    script.write_text(text + "# edited\n", encoding="utf-8")
    os.utime(script, (later, later))
    assert started() == (True, FindingLevel.WARNING)
