"""What is about to happen is counted down in the header, and Esc stops it once nothing else is open: real runs in a pseudo-terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import Backoff, Finished, HeldOpen
from tests.integration.harness import JOB, facts, wait_for_run
from tests.views.tui.wire import Wire, terminal

pytestmark = pytest.mark.e2e

START = ("run", "--no-check", "--python", sys.executable, "--nproc-per-node", "2")


def asked(run: RunPaths) -> list[ev.RequestKind]:
    """What was requested and done, by the journal."""
    return [fact.request for fact in facts(run) if isinstance(fact, ev.RequestDone)]


def end_any(screen: Wire, run: RunPaths) -> None:
    """A person ends a run in whatever state it is."""
    screen.press("S")
    screen.wait_for("y yes")
    screen.press("y")
    screen.until_state(run, Finished)


def test_no_restart_begins_while_its_arguments_are_edited(tmp_path: Path) -> None:
    words = (*START, "--restart-from-scratch", JOB, "--mode", "sigkill")
    with terminal(*words, cwd=tmp_path) as screen:
        run = wait_for_run(tmp_path)
        counted = screen.until_state(run, Backoff).condition
        assert isinstance(counted, Backoff)
        screen.wait_for("restarts in")
        screen.press("e")
        screen.until_state(run, HeldOpen)
        screen.wait_for("the automatic restart is stopped")
        screen.until(lambda: time.time() > counted.until + 1.0)
        screen.press("\x1b")
        screen.wait_for("not restarted; the run waits for you", "‖ waiting for you")
        assert asked(run) == [ev.RequestKind.HOLD]
        screen.press("e")
        screen.wait_for("restart with other arguments")
        screen.press(" --seed 7")
        screen.wait_for("+ --seed 7")
        assert len(read_state(run.node().journal).attempts) == 1
        screen.press("\r")
        screen.until(lambda: len(read_state(run.node().journal).attempts) == 2)
        assert asked(run) == [ev.RequestKind.HOLD, ev.RequestKind.RESTART_WITH]
        screen.wait_for("attempt 2")  # a request names the attempt that the screen shows
        end_any(screen, run)
