"""What is painted when: a run's newest lines first of all, a key before what was read, nothing behind that nobody sees."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import pexpect
from textual.pilot import Pilot

from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.views.splash.first_look import newest_log
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.frame_rate import FRAME_S
from tests.integration.harness import STOKER, environment
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, until


def newest_of(run: RunPaths) -> Path:
    found = newest_log(run, read_state(run.node().journal))
    assert found is not None
    return Path(found)


def test_the_log_that_was_written_last(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    run.node().attempt(2).agent_log.unlink(missing_ok=True)
    attempt = run.node().attempt(2).root
    logs = sorted(attempt.rglob("std*.log"))
    for number, log in enumerate(logs):
        log.write_text("a line\n", encoding="utf-8")
        os.utime(log, (number, number))
    assert newest_of(run) == logs[-1]
    logs[-1].write_bytes(b"")
    assert newest_of(run) == logs[-2], "an empty one shows nothing"
    for log in logs:
        log.unlink()
    assert newest_log(run, read_state(run.node().journal)) is None


def test_lines_of_a_run_come_before_its_dashboard(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    with newest_of(run).open("a", encoding="utf-8") as log:
        log.write("this is the newest line\n")
    process = pexpect.spawn(
        sys.executable,
        [*STOKER[1:], "attach", str(run.root), "--read-only"],
        env=environment({"TERM": "xterm-256color"}),
        dimensions=(40, 120),
        timeout=60,
    )
    try:
        process.expect("this is the newest line")
        assert b"\x1b]" not in process.before, "the app has not begun"
        assert b"attempts" not in process.before
        process.expect("attempts")
        process.send("q")
        process.expect(pexpect.EOF)
    finally:
        process.close(force=True)


def test_screens_paint_soon_after_a_paint(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: app.screen is not app.dashboard, "the help")
        for screen in app.screen_stack[1:]:
            assert screen._update_timer._interval == FRAME_S, "Textual names its timer as it did"

    drive(recorded.healthy(tmp_path / "run"), play)


def test_news_wait_for_a_key_and_come_then(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        before = app.dashboard.snapshot
        assert before is not None
        news = msgspec.structs.replace(before, revision=before.revision + 1)
        quiet_t = app._typed_t
        await pilot.press("space")
        assert app._typed_t > quiet_t
        app._typed_t = time.monotonic()  # just now, however slow this machine is
        app.on_stoker_app_read(app.Read(app.dashboard, news))
        assert app.dashboard.snapshot is before, "the key is painted first"
        await until(pilot, lambda: app.dashboard.snapshot is news, "the news")

    drive(run, play)


def test_what_came_behind_another_screen_is_there_when_that_is_closed(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: app.screen is not app.dashboard, "the help")
        for number in range(3):
            with newest_of(run).open("a", encoding="utf-8") as log:
                log.write(f"behind the help {number}\n")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard, "the dashboard")
        await until(pilot, lambda: "behind the help 2" in pane(app, "log"), "the line in the pane")

    drive(run, play)
