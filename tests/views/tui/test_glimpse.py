"""`stoker attach LOG` shows the log's end before the app is loaded: in the app's own place, and never for good."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pexpect
import pyte
import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.lock import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.views.palette import chosen
from supervisor.views.splash.glimpse import last_lines
from supervisor.views.splash.picture import Depth, Look, Said, Scene, paint
from supervisor.views.tui.app import StokerApp
from tests.conftest import wait_until
from tests.integration.harness import STOKER, environment, only_run
from tests.views.tui import recorded
from tests.views.tui.driving import drive, shown, until

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


def attaching(log: Path, *args: str, **env: str) -> AbstractContextManager[pexpect.spawn]:
    return on_a_terminal("attach", str(log), *args, env=env)


@contextmanager
def on_a_terminal(
    *args: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = STOKER[1:],
) -> Iterator[pexpect.spawn]:
    process = pexpect.spawn(
        sys.executable,
        [*program, *args],
        env=environment({"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}),
        cwd=str(cwd) if cwd is not None else None,
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


GROUND = b"\x1b[48;2;15;19;23m"


def test_a_start_shows_its_frame_and_the_app_comes_over_it(tmp_path: Path) -> None:
    with on_a_terminal("run", "--", "sh", "-c", "sleep 1", cwd=tmp_path) as process:
        process.expect("○ starting".encode())
        before = process.before
        assert before.count(ENTERED) == 1
        assert GROUND in before
        process.expect_exact("$ sh -c 'sleep 1'")
        process.expect("✓ run folder".encode())
        process.expect("attempt 1")
        assert ENTERED not in process.before, "the app goes on where the picture is"
        assert LEFT not in process.before
        process.send("q")
        process.expect(pexpect.EOF)
        assert process.before.count(LEFT) == 1
    process.wait()
    run = only_run(tmp_path)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--runs-dir", "/proc/none"), 3, b"stoker run: "),
        (
            ("--python", "/bin/false"),
            2,
            b"stoker run: --python /bin/false: does not run as a Python interpreter",
        ),
    ],
)
def test_a_refused_start_leaves_one_line_and_the_terminal_as_it_was(
    tmp_path: Path, flags: tuple[str, ...], code: int, said: bytes
) -> None:
    (tmp_path / "train.py").write_text("pass\n", encoding="utf-8")
    with on_a_terminal("run", *flags, "train.py", cwd=tmp_path) as process:
        process.expect("○ starting".encode())
        process.expect(pexpect.EOF)
        shown, _, after = process.before.rpartition(LEFT)
        assert b"stoker run" not in shown
        left = after.removeprefix(b"\x1b[?25h")
        assert left.startswith(said)
        assert left.count(b"\n") == 1
        assert b"\x1b" not in left
    process.wait()
    assert process.exitstatus == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_ended_while_it_starts_the_terminal_is_whole(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 30\n", encoding="utf-8")
    slow.chmod(0o755)
    (tmp_path / "train.py").touch()
    with on_a_terminal("run", "--python", str(slow), "train.py", cwd=tmp_path) as process:
        process.expect("○ starting".encode())
        process.kill(signal.SIGINT)
        process.expect(pexpect.EOF)
        assert process.before.count(LEFT) == 1
    process.wait()
    assert process.exitstatus == 130


@pytest.mark.parametrize("args", [("--no-ui",), ("--detach",)])
def test_without_the_screen_nothing_is_painted(tmp_path: Path, args: tuple[str, ...]) -> None:
    with on_a_terminal("run", *args, "--", "true", cwd=tmp_path) as process:
        process.expect(pexpect.EOF)
        assert ENTERED not in process.before
        assert LEFT not in process.before
    process.wait()
    run = only_run(tmp_path)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)


def test_the_list_of_runs_begins_with_its_frame(tmp_path: Path) -> None:
    with on_a_terminal("--ascii", cwd=tmp_path) as process:
        process.expect_exact("+ ")
        process.expect_exact("runs")
        process.expect_exact("stoker attach train.log")
        assert process.before.count(ENTERED) == 0
        process.send("q")
        process.expect(pexpect.EOF)
    process.wait()
    assert process.exitstatus == 0


INTERRUPTED = """
import sys
from supervisor.cli import open_app as screen
from supervisor.cli.main import main
def interrupted():
    raise KeyboardInterrupt
screen.load_app = interrupted
sys.exit(main(["run", "--", "true"]))
"""


def test_interrupted_once_the_run_has_begun_its_name_is_said(tmp_path: Path) -> None:
    with on_a_terminal("-c", INTERRUPTED, cwd=tmp_path, program=()) as process:
        process.expect(pexpect.EOF)
        after = process.before.rpartition(LEFT)[2]
    process.wait()
    assert process.exitstatus == 130
    run = only_run(tmp_path)
    assert f"the run has begun: `stoker attach {run.run_id}` shows it".encode() in after
    assert wait_until(lambda: is_over(run), 30)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)


def is_over(run: RunPaths) -> bool:
    return run.node().journal.exists() and read_state(run.node().journal).is_over
