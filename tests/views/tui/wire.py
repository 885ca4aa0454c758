"""The app in a real pseudo-terminal: the very bytes it writes, and the screen that a terminal makes of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pyte

from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from tests.integration.harness import STOKER, environment

DEADLINE_S = 60.0
# An app that paints a step every 50 ms is never quiet, least of all where this process is the slower one.
TAKING_S = 0.5
SIZE = (120, 40)
STANDING_S = 0.1
# The app's own title (OSC 2): one line of text, and nothing that ends or turns it.
_TITLE = r"\x1b\]2;[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]*\x1b\\"
# A control sequence, another escape, a C0 or C1 control, or a character that turns or joins what stands around it.
_NOT_TEXT = re.compile(
    r"\x1b\[(?P<csi>[0-?]*[ -/]*[@-~])|(?P<pointer>\x1b\]22;[a-z-]*\x07)|(?P<title>"
    + _TITLE
    + r")|\x1b(?P<escape>.)|(?P<control>[\x00-\x1f\x7f-\x9f])"
    r"|(?P<format>[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff])",
    re.DOTALL,
)
# What Textual itself sends: modes when it starts and leaves, places, colours, one frame's begin and end.
_OWN = re.compile(
    r"\?(?:1049|1000|1002|1003|1004|1006|1007|1015|1016|25|2004|2026|2048|7)[hl]|\?20(?:26|48)\$p|[<>=]?[0-9;]*u"
    r"|[0-9;]*[HABCD]|c|\?[0-9]*u|[0-9;]*m|2[23];2t"  # the last: keep the title, give it back
)
# Attributes that no theme uses: blinking, hidden, struck through, doubly underlined.
_STRANGE_ATTRIBUTES = {"5", "6", "8", "9", "21"}


class Wire:
    """What a program wrote to its terminal. Size in cells, as (columns, rows)."""

    def __init__(self, process: pexpect.spawn, size: tuple[int, int]) -> None:
        self.process = process
        self.written = b""
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)

    def take(self, timeout_s: float = 0.05) -> int:
        """Take in what was written; how many bytes that were."""
        taken, end = 0, time.monotonic() + TAKING_S
        try:
            while time.monotonic() < end:
                data = self.process.read_nonblocking(1 << 16, timeout=timeout_s)
                self.written += data
                self._stream.feed(data)
                taken += len(data)
        except (pexpect.TIMEOUT, pexpect.EOF):
            pass
        return taken

    @property
    def rows(self) -> list[str]:
        """The screen, row by row."""
        self.take()
        return list(self._screen.display)

    def text(self) -> str:
        """The screen."""
        return "\n".join(self.rows)

    def wait_for(self, *texts: str, deadline_s: float = DEADLINE_S) -> str:
        """The first screen that shows all of `texts`."""
        self.until(lambda: all(text in "\n".join(self._screen.display) for text in texts), texts, deadline_s)
        return self.text()

    def until(
        self, condition: Callable[[], object], what: object = "it", deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait for a condition; reading continues, or a full pty would stop the app."""
        end = time.monotonic() + deadline_s
        while not condition():
            self.take()
            assert time.monotonic() < end, f"{what} never came; the screen shows:\n{self.text()}"

    def until_state(self, run: RunPaths, *conditions: type, deadline_s: float = DEADLINE_S) -> RunState:
        """The state of a run once its condition is one of `conditions`."""
        self.until(
            lambda: isinstance(read_state(run.node().journal).condition, conditions), conditions, deadline_s
        )
        return read_state(run.node().journal)

    def wait_for_exit(self, deadline_s: float = 20.0) -> int:
        """The exit status of the command."""
        self.until(lambda: not self.process.isalive(), "its end", deadline_s)
        self.process.close()
        assert self.process.exitstatus is not None, f"ended by signal {self.process.signalstatus}"
        return int(self.process.exitstatus)

    def settle(self, deadline_s: float = 10.0) -> str:
        """The screen once nothing was written for a while (a clock's tick may still come)."""
        end = time.monotonic() + deadline_s
        while self.take(STANDING_S) and time.monotonic() < end:
            pass
        return self.text()

    def press(self, keys: str) -> None:
        """Send keys."""
        self.process.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Another size of the terminal."""
        self._screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)


def strange(written: bytes) -> list[str]:
    """Whatever in the output is neither text nor what the app sends of its own."""
    found = []
    for match in _NOT_TEXT.finditer(written.decode("utf-8")):
        csi = match["csi"]
        if match["pointer"] or match["title"]:
            continue  # the mouse pointer's shape: Textual's own
        if csi is None:
            if match.group() not in {"\r", "\n", "\r\n"}:
                found.append(written.decode("utf-8")[max(match.start() - 20, 0) : match.end() + 20])
        elif not _OWN.fullmatch(csi) or (csi.endswith("m") and _attributes(csi) & _STRANGE_ATTRIBUTES):
            found.append(written.decode("utf-8")[max(match.start() - 20, 0) : match.end() + 20])
    return found


def _attributes(sgr: str) -> set[str]:
    """The attributes of an SGR sequence, without the numbers of colours."""
    return set(re.sub(r"[34]8;(?:5;\d+|2;\d+;\d+;\d+)", "", sgr[:-1]).split(";"))


@contextmanager
def on_a_terminal(
    script: str,
    *args: str | Path,
    size: tuple[int, int] = SIZE,
    env: Mapping[str, str] | None = None,
) -> Iterator[Wire]:
    """A Python program on a pseudo-terminal; ended with the block."""
    with running(
        sys.executable, "-c", script, *map(str, args), size=size, env={"TZ": "UTC", **(env or {})}
    ) as wire:
        yield wire


@contextmanager
def terminal(*args: str, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[Wire]:
    """`stoker ARGS` on a pseudo-terminal; ended with the block."""
    with running(*STOKER, *args, cwd=cwd, env=env) as wire:
        yield wire


@contextmanager
def running(
    *command: str,
    size: tuple[int, int] = SIZE,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Wire]:
    """A command on a pseudo-terminal; ended with the block."""
    surroundings = environment({"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})})
    surroundings.pop("NO_COLOR", None)
    process = pexpect.spawn(
        command[0],
        list(command[1:]),
        cwd=str(cwd) if cwd is not None else None,
        env=surroundings,
        dimensions=(size[1], size[0]),
        timeout=DEADLINE_S,
    )
    try:
        yield Wire(process, size)
    finally:
        process.close(force=True)


SHOW_RUN = """
import sys; from pathlib import Path; from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import run_tui
from supervisor.views.tui.shell.feeder import Adopter; from supervisor.run.ownership import Offer
adopter = Adopter(lambda _run: Offer(actions=("takes over what lives of it: pid 12 (python3)",)), lambda _run: None)
run_tui(RunPaths(Path(sys.argv[1])), adopter=adopter)
"""
# As `stoker attach` does it, with what is printed once the screen is gone.
SHOW_AND_LEAVE = """
import os, sys; from pathlib import Path; from supervisor.run.paths import RunPaths
from supervisor.cli.open_app import show; from supervisor.views.appearance import USUAL
show(RunPaths(Path(sys.argv[1])), read_only=False, env=os.environ, appearance=USUAL)
"""
