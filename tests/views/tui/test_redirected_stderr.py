"""The screen under `2>err.log`: it is drawn on the terminal, and the file holds the log and nothing else."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pexpect

from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from tests.integration.harness import ROOT, environment, put, wait_for_run, wait_for_state
from tests.views.tui.wire import SIZE, Wire

# The command line, with a part of stoker that logs something while the screen is open.
LOGS_LATER = """\
import logging, sys, threading
from supervisor.cli.main import main
later = threading.Timer(3.0, logging.getLogger("stoker.tail").warning, ["a watch could not be set"])
later.daemon = True
later.start()
code = main(sys.argv[1:])
print("left with", code, file=sys.stderr)
sys.exit(code)
"""


def opened(*args: str, cwd: Path) -> Wire:
    """`stoker ARGS 2>err.log` in a pseudo-terminal."""
    words = shlex.join([sys.executable, "-c", LOGS_LATER, *args])
    env = environment({"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)})
    env.pop("NO_COLOR", None)
    process = pexpect.spawn(
        "bash", ["-c", f"{words} 2>err.log"], cwd=str(cwd), env=env, dimensions=(SIZE[1], SIZE[0]), timeout=60
    )
    return Wire(process, SIZE)


def test_a_run_s_dashboard_opens_and_the_log_lands_in_the_file(tmp_path: Path) -> None:
    gate, err = tmp_path / "gate", tmp_path / "err.log"
    job = "import os, time\nprint('step 1 loss 0.5', flush=True)\nwhile not os.path.exists('gate'): time.sleep(0.05)\n"
    (tmp_path / "job.py").write_text(job, encoding="utf-8")
    screen = opened("run", "--no-check", "--", sys.executable, "job.py", cwd=tmp_path)
    try:
        run = wait_for_run(tmp_path)
        screen.wait_for("attempt 1", "loss")
        screen.until(lambda: "a watch could not be set" in err.read_text(encoding="utf-8"))
        screen.press("?")
        screen.wait_for("Esc closes")
        screen.press("?")
        screen.until(lambda: "Esc closes" not in screen.text())
        screen.press("q")
        assert screen.wait_for_exit() == 0
    finally:
        put(gate, "")
        screen.process.close(force=True)
    wait_for_state(RunPaths(run.root), Finished)
    lines = err.read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == ["a watch could not be set", "left with 0"], "no picture, and the file is given back"
