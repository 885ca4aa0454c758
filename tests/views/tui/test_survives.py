"""What the screen says when things are not as they should be; it never crashes and never lies."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pexpect
import pytest
from textual.pilot import Pilot

from supervisor.run.events import RequestKind
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file, write_run_file
from supervisor.text.decode import strip_escapes
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell.feeder import Answer, RequestClient
from tests.conftest import wait_until
from tests.disks import fill, small_disk
from tests.tiers import first
from tests.views.tui import recorded
from tests.views.tui.driving import OFFER, drive, keeper_of, offered, pane, plays, requests, shown, until
from tests.views.tui.wire import SHOW_AND_LEAVE, SHOW_RUN, on_a_terminal


@pytest.mark.fault("journal and disk", "the run directory is removed under a dashboard", "reported")
@plays(recorded.healthy)
async def test_run_directory_is_removed(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    shutil.rmtree(run.root)
    await until(pilot, lambda: "the run directory is gone" in pane(app, "notice"), "the notice")
    assert "1 840" in pane(app, "header"), "the last that was read stays"
    assert "restart" not in pane(app, "footer")


@pytest.mark.e2e
def test_what_is_printed_on_leaving_a_run_directory_that_is_gone(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    with on_a_terminal(SHOW_AND_LEAVE, run.root, size=(300, 40)) as wire:
        wire.wait_for("checkpoint at step 1800")
        shutil.rmtree(run.root)
        wire.wait_for("the run directory is gone")
        wire.press("q")
        wire.until(lambda: not wire.process.isalive(), "its end")
        wire.take()
        _, _, printed = wire.written.rpartition(b"\x1b[?1049l")
        lines = [line for line in strip_escapes(printed.decode()).splitlines() if line.strip()]
        assert lines == [f"{run.root}: the run directory is gone"]
        assert wire.process.exitstatus == 0


@plays(recorded.healthy)
async def test_journal_is_cut(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    journal = run.node().journal
    journal.write_bytes(journal.read_bytes()[:700])
    await until(pilot, lambda: "no step yet" in pane(app, "header"), "the shorter state")


@pytest.mark.fault("processes", "the keeper is killed under a dashboard", "reported; adoption is offered")
def test_keeper_is_gone(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    adopted: list[bool] = []

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "the supervisor process is gone" in pane(app, "notice")
        assert "supervisor process is gone" in pane(app, "header")
        await until(pilot, lambda: "A adopt" in pane(app, "footer"), "what lives is looked at")
        await pilot.press("r")
        await offered(app, pilot)
        assert "restart: the supervisor process is gone, nobody would do it" in shown(app)
        await pilot.press("n", "A")
        await offered(app, pilot)
        assert all(deed in shown(app) for deed in OFFER.actions)
        assert not adopted, "nothing is done before it is said what"
        await pilot.press("y")
        await until(pilot, lambda: bool(adopted), "the adoption")

    drive(run, play, keeper=False, adopt=lambda orphan: adopted.append(orphan == run))


def test_a_copy_is_only_looked_at(tmp_path: Path) -> None:
    """Made of hard links it shares the lock of the original, whose keeper lives."""
    run = recorded.healthy(tmp_path / "run")
    record = read_run_file(run.run_json)
    write_run_file(run.run_json, msgspec.structs.replace(record, path=str(run.root)))
    run.control.mkdir(exist_ok=True)
    with keeper_of(run):
        subprocess.run(["cp", "-al", run.root, tmp_path / "copy"], check=True)
        copy = RunPaths(tmp_path / "copy")

        async def play(app: StokerApp, pilot: Pilot[None]) -> None:
            notice = "this folder is a copy"
            await until(pilot, lambda: notice in pane(app, "notice"), "the notice")
            await pilot.press("s", "r", "A")
            await until(pilot, lambda: app.screen is app.dashboard, "no question")
            assert "A adopt" not in pane(app, "footer")
            told: list[Answer] = []
            RequestClient(copy).sender(RequestKind.STOP, 1, None, 0.0, told.append)()
            assert "this folder is a copy" in told[0].text

        drive(copy, play, keeper=False, adopt=lambda _run: None, size=(200, 50))
        assert not requests(run)
        assert not requests(copy)


SIZES = [(80, 24), (20, 5), (300, 80), (100, 30)]


@plays(recorded.backing_off)
async def test_every_size_paints_whole_rows(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    for width, height in SIZES:
        await pilot.resize_terminal(width, height)
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        assert len(strips) == height
        assert {strip.cell_length for strip in strips} == {width}
        assert "stoker" in shown(app) or width < 100  # the step comes before our name
        assert "q" in pane(app, "footer")


@pytest.mark.parametrize("number", first(1, [signal.SIGHUP, signal.SIGTERM]))
def test_signals_leave_and_give_the_terminal_back(tmp_path: Path, number: signal.Signals) -> None:
    run = recorded.healthy(tmp_path / "run")
    script = "import os, sys; from pathlib import Path; from supervisor.run.paths import RunPaths\n"
    script += "from supervisor.cli.open_app import show; from supervisor.views.appearance import USUAL\n"
    script += "show(RunPaths(Path(sys.argv[1])), read_only=True, env=os.environ, appearance=USUAL)"
    process = pexpect.spawn(sys.executable, ["-c", script, str(run.root)], dimensions=(30, 100), timeout=30)
    try:
        process.expect("healthy|stepping")
        process.kill(number)
        process.expect_exact("\x1b[?1049l")
        process.expect("its supervisor process is gone")
        process.expect(pexpect.EOF)
        process.close()
        assert process.exitstatus == 0
    finally:
        process.close(force=True)


@pytest.mark.e2e
def test_two_hundred_sizes_in_a_real_terminal(tmp_path: Path) -> None:
    run = recorded.backing_off(tmp_path / "run")
    sizes = random.Random(7)
    with keeper_of(run), on_a_terminal(SHOW_RUN, run.root) as wire:
        wire.wait_for("cuda_oom")
        for turn in range(200):
            wire.resize(sizes.randint(1, 240), sizes.randint(1, 70))
            if turn % 20 == 0:
                wire.press("v")  # pages are resized too
            wire.take(0.005)
        wire.resize(1, 1)
        wire.take()
        wire.resize(120, 40)
        text = wire.wait_for("stoker", "cuda_oom", "leave")
        frames = [line.rstrip() for line in text.splitlines() if line.startswith(("│", "╭", "╰"))]
        assert frames
        assert all(line.endswith(("│", "╮", "╯")) for line in frames), text
        wire.press("q")
        wire.until(lambda: not wire.process.isalive(), "its end")
        assert wire.process.exitstatus == 0


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_stopped_and_continued(tmp_path: Path) -> None:
    """A shell's `kill -TSTP` and `fg`."""
    run = recorded.healthy(tmp_path / "run")
    with keeper_of(run), on_a_terminal(SHOW_RUN, run.root) as wire:
        wire.wait_for("stepping")
        os.kill(wire.process.pid, signal.SIGTSTP)
        wire.until(lambda: process_state(wire.process.pid) == "T", "the stop")
        wire.take()
        assert b"\x1b[?1049l" in wire.written, "the shell has its screen back"
        wire.resize(100, 30)
        os.kill(wire.process.pid, signal.SIGCONT)
        wire.wait_for("stepping", "leave")
        wire.press("?")
        wire.wait_for("Esc closes")
        wire.press("?")
        wire.until(lambda: "Esc closes" not in wire.text(), "the help's end")
        wire.press("q")
        wire.until(lambda: not wire.process.isalive(), "its end")
        assert wire.process.exitstatus == 0


def test_the_terminal_itself_goes_away(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    with keeper_of(run), on_a_terminal(SHOW_RUN, run.root) as wire:
        wire.wait_for("stepping")
        pid = wire.process.pid
        wire.process.ptyproc.fileobj.close()  # what the kernel does when ssh drops: SIGHUP, then EIO
        wire.process.closed = wire.process.ptyproc.closed = True
        assert wait_until(lambda: not wire.process.isalive(), 20), process_state(pid)


def test_the_disk_is_full(tmp_path: Path) -> None:
    """Nothing more can be written: what can be read is shown, a request says why it was not put down."""
    with small_disk(tmp_path / "disk") as disk:
        run = recorded.backing_off(disk / "run")
        fill(disk)

        async def play(app: StokerApp, pilot: Pilot[None]) -> None:
            assert "cuda_oom" in pane(app, "card")
            await pilot.press("r", "y")
            await until(pilot, lambda: "No space left" in pane(app, "notice"), "the reason")
            await pilot.press("m", *"note", "enter")
            await pilot.press("T", "T")

        drive(run, play)
