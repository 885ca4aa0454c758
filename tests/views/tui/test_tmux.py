"""The app under tmux, as over ssh: the whole story with a real run, and small terminals of few colours."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from supervisor.run.events import Outcome
from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.state import Backoff, Finished, HeldOpen
from tests.integration.harness import ROOT, STOKER, environment, wait_for_run
from tests.views.tui import recorded
from tests.views.tui.driving import keeper_of
from tests.views.tui.wire import SHOW_AND_LEAVE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt install tmux"),
]
POLL_S = 0.1


class Tmux:
    """A tmux server of our own with one shell in it."""

    def __init__(self, socket: Path, cwd: Path, size: tuple[int, int], env: dict[str, str]) -> None:
        self._socket = socket
        self._env = {name: value for name, value in environment(env).items() if name != "TMUX"}
        columns, rows = map(str, size)
        self._do("new-session", "-d", "-x", columns, "-y", rows, "-c", str(cwd), "sh")
        self._do("set", "-g", "status", "off")

    def _do(self, *args: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *args]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, check=True, timeout=20, encoding="utf-8"
        )
        return done.stdout

    def type(self, text: str) -> None:
        """A line for the shell."""
        self._do("send-keys", "-l", "--", text)
        self.keys("Enter")

    def keys(self, *names: str) -> None:
        """Press keys, by tmux's names."""
        self._do("send-keys", *names)

    def screen(self, *, colours: bool = False) -> str:
        """What the pane shows."""
        return self._do("capture-pane", "-p", *(["-e"] if colours else []))

    def lacks(self, text: str) -> bool:
        """Whether the pane does not show `text`."""
        return text not in self.screen()

    def wait_for(self, *texts: str, deadline_s: float = 60.0) -> str:
        """The first screen that shows all of `texts`."""
        self.until(lambda: all(text in self.screen() for text in texts), texts, deadline_s)
        return self.screen()

    def until(self, condition: Callable[[], object], what: object, deadline_s: float = 60.0) -> None:
        """Wait for a condition."""
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, f"{what} never came; the pane shows:\n{self.screen()}"
            time.sleep(POLL_S)

    def close(self) -> None:
        """End the server and what runs in it."""
        self._do("kill-server")


@contextmanager
def tmux(
    folder: Path, size: tuple[int, int] = (120, 40), env: dict[str, str] | None = None
) -> Iterator[Tmux]:
    """A shell in tmux, ended with the block."""
    server = Tmux(folder / "tmux", folder, size, env or {})
    try:
        server.until(lambda: server.screen().strip(), "the shell's prompt")
        yield server
    finally:
        server.close()


def whole(text: str) -> str:
    """The same screen, once no frame in it is torn and nothing raw shows."""
    lines = text.splitlines()
    for line in lines:
        if line.startswith(("│", "╭", "╰")):
            assert line.rstrip().endswith(("│", "╮", "╯")), f"a frame is torn:\n{text}"
    assert not re.search(r"\[[0-9;?]+[a-zA-Z]|;[0-9]+m|\ufffd", text), f"a sequence shows:\n{text}"
    return text


def test_launch_filter_help_fail_restart_smaller_leave_attach_stop(tmp_path: Path) -> None:
    """Two ranks of the bundled trainer; the second really runs out of the memory it may use."""
    stoker = shlex.join(STOKER)
    config = str(ROOT / "configs" / "demo" / "demo.toml")
    words = ["run", "--python", sys.executable, "--config", config, "--no-retry", "--num_iterations=100000"]
    with tmux(tmp_path) as pane:
        pane.type(f"{stoker} {shlex.join(words)}")
        run = wait_for_run(tmp_path)
        pane.wait_for("attempt 1", "stepping", "loss", "log")

        pane.keys("f")
        pane.wait_for("words, -without")
        pane.keys("-l", "r0 loss")
        pane.keys("Enter")
        whole(pane.wait_for("rank 0 · “loss”"))
        pane.keys("Escape")
        pane.until(lambda: "“loss”" not in pane.screen(), "the whole log")

        pane.keys("?")
        whole(pane.wait_for("act on the run", "Esc closes"))
        pane.keys("?")
        pane.until(lambda: "Esc closes" not in pane.screen(), "the help's end")

        pane.until(
            lambda: isinstance(read_state(run.node().journal).condition, (HeldOpen, Backoff)),
            "the failure",
            150,
        )
        pane.wait_for("host_oom", "rank 1")
        pane.keys("v")
        whole(pane.wait_for("cause", "what followed", "what to do"))
        pane.keys("v")

        pane.keys("b")
        pane.wait_for("16", "8", "global batch", "unchanged")
        pane.keys("Enter")
        pane.until(lambda: len(read_state(run.node().journal).attempts) == 2, "attempt 2")
        pane.wait_for("attempt 2", "stepping", deadline_s=90)
        state = read_state(run.node().journal)
        assert state.attempt is not None
        assert state.attempt.batch is not None
        assert state.attempt.batch.micro_batch_per_rank == 8

        pane.keys("q")
        pane.wait_for("come back with: stoker attach")
        assert keeper_is_alive(run.node().lock), "leaving ends nothing"

        pane.type(f"clear; {stoker} attach")
        whole(pane.wait_for("attempt 2", "stepping", "leave"))
        pane.keys("s")
        pane.until(
            lambda: "y yes" in pane.screen() or "stopping" in pane.screen(), "the question or the stop"
        )
        if "y yes" in pane.screen():
            pane.keys("y")
        pane.until(lambda: isinstance(read_state(run.node().journal).condition, Finished), "the end", 90)
        whole(pane.wait_for("stopped"))
        pane.keys("q")
        pane.wait_for(f"{run.run_id}: stopped")  # said on the plain terminal: the shell reads again
        pane.type("echo it gave $?")
        pane.wait_for("it gave 5")
    end = read_state(run.node().journal).condition
    assert isinstance(end, Finished)
    assert end.outcome is Outcome.STOPPED


def test_a_small_terminal_of_few_colours(tmp_path: Path) -> None:
    run = recorded.backing_off(tmp_path / "20261121-1412-brave-otter")
    wanted = {"COLORTERM": "", "TZ": "UTC", "NO_COLOR": "", "TERM": "screen"}
    setting = " ".join(f"{name}={value}" for name, value in wanted.items() if value)
    unset = " ".join(f"-u {name}" for name, value in wanted.items() if not value)
    command = f"env {unset} {setting} {sys.executable} -c {shlex.quote(SHOW_AND_LEAVE)} {shlex.quote(str(run.root))}"
    script = tmp_path / "show.sh"
    script.write_text(f"{command}\n", encoding="utf-8")
    with keeper_of(run), tmux(tmp_path, (80, 24)) as pane:
        pane.type(f"sh {script}")
        text = whole(pane.wait_for("cuda_oom", "rank 1", "leave"))
        assert len(text.splitlines()) <= 24
        raw = pane.screen(colours=True)
        codes = set(re.findall(r"\x1b\[([0-9;]*)m", raw))
        assert not [code for code in codes if re.search(r"[34]8[;:]", code)], "more than 16 colours"
        pages = (("v", "what followed"), ("?", "Esc closes"), ("L", "merged by arrival"), ("b", "per rank"))
        for keys, shown in pages:
            pane.keys(keys)
            whole(pane.wait_for(shown))
            pane.keys("Escape")
            pane.until(partial(pane.lacks, shown), f"the end of {keys}")
        pane.keys("q")
        pane.wait_for("the next attempt starts by itself", "stoker attach")
    assert os.path.isdir(run.root)
