"""`stoker attach LOG` shows the log's end before the app is loaded: in the app's own place, and never for good."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pyte
import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.views.glimpse import last_lines
from supervisor.views.palette import chosen
from supervisor.views.picture import Depth, Look, Said, Scene, paint
from supervisor.views.tui.app import StokerApp
from tests.integration.harness import STOKER, environment
from tests.tui import recorded
from tests.tui.driving import drive, shown, until

DARK = Look(chosen(None, None), Depth.TRUE)
ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.parametrize("size", [(200, 50), (120, 40), (100, 30), (80, 24)])
def test_the_app_puts_the_lines_where_they_are(tmp_path: Path, size: tuple[int, int]) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"the line of number {number}\n" for number in range(300)), encoding="utf-8")
    rec = recorded.Recording(tmp_path / "run", name=log.name, mode="observed", gpus=0, total_steps=None)
    rec.number = 1
    rec.fact(ev.LaunchIntended(t=rec.t, attempt=1, argv=(), reason="watching train.log"))
    rec.fact(ev.AttemptStarted(t=rec.t, attempt=1, pid=0, start_time=0.0))
    rec.fact(ev.RankStarted(t=rec.t, attempt=1, local_rank=0, stdout=str(log)))
    run = rec.close()
    screen = pyte.Screen(*size)
    scene = Scene(header=((), (Said(log.name),)), lines=last_lines(str(log), size[1]))
    pyte.Stream(screen).feed(paint(scene, DARK, *size))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "number 299" in shown(app), "the log")
        rows = shown(app).splitlines()
        for number, row in enumerate(screen.display):
            if "the line of" in row:
                at = row.index("the line of")
                assert rows[number][at:].startswith(row.strip()), (number, rows[number])
        assert sum("the line of" in row for row in rows) == sum("the line of" in r for r in screen.display)

    drive(run, play, size=size)


@contextmanager
def attaching(log: Path, *args: str, **env: str) -> Iterator[pexpect.spawn]:
    process = pexpect.spawn(
        sys.executable,
        [*STOKER[1:], "attach", str(log), *args],
        env=environment({"TERM": "xterm-256color", **env}),
        dimensions=(40, 120),
        timeout=60,
    )
    try:
        yield process
    finally:
        process.close(force=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text("step 1 loss 2.5\nthe last line\n", encoding="utf-8")
    return path


def test_the_lines_come_first_and_the_terminal_is_given_back_once(log: Path) -> None:
    with attaching(log) as process:
        process.expect("the last line")
        assert process.before.count(ENTERED) == 1
        assert b"\x1b]" not in process.before, "the app has not begun"
        process.expect("leave")
        process.send("q")
        process.expect(pexpect.EOF)
        assert process.before.count(LEFT) == 1
        assert process.before.rindex(LEFT) < process.before.index(b"supervised")
    process.wait()
    assert process.exitstatus == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_while_the_app_is_loaded_the_terminal_is_whole(log: Path, number: int) -> None:
    with attaching(log) as process:
        process.expect("the last line")
        process.kill(number)
        process.expect(pexpect.EOF)
        assert process.before.count(LEFT) == 1
    process.wait()
    assert process.signalstatus == number or process.exitstatus == 128 + number


def test_what_goes_wrong_meanwhile_is_said_on_the_usual_screen(log: Path, tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()
    with attaching(log, XDG_STATE_HOME=str(tmp_path / "no-folder")) as process:
        process.expect("the last line")
        process.expect(pexpect.EOF)
        before, _, after = process.before.partition(LEFT)
        assert b"stoker attach" not in before
        assert b"set XDG_STATE_HOME to a folder of yours" in after
    process.wait()
    assert process.exitstatus == 3
    assert not os.path.isdir(tmp_path / "no-folder")
