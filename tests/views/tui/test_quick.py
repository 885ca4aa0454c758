"""What is painted when: a run's newest lines first of all, a key before what was read, nothing behind that nobody sees."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.screen_base import FRAME_S
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, until


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
    logs = sorted(run.node().attempt(2).root.rglob("stdout.log"))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: app.screen is not app.dashboard, "the help")
        for number in range(3):
            with logs[0].open("a", encoding="utf-8") as log:
                log.write(f"behind the help {number}\n")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard, "the dashboard")
        await until(pilot, lambda: "behind the help 2" in pane(app, "log"), "the line in the pane")

    drive(run, play)
