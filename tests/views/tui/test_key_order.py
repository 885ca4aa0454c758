"""Keys that arrive in one burst, as a slow line delivers them, are done one after another."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from supervisor.run.paths import RunPaths
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.app import RETRY_S, WAIT_S, StokerApp
from supervisor.views.tui.shell.prompts import AskLine
from tests.views.tui import recorded
from tests.views.tui.driving import clock_after, drive, keeper_of, on_dashboard, plays, requests, until


def burst(app: StokerApp, *keys: str) -> None:
    """All of `keys` before the app does anything with the first."""
    for key in keys:
        name = {"/": "slash", ".": "full_stop", " ": "space", "-": "minus"}.get(key, key)
        app.post_message(events.Key(name, key if len(key) == 1 else None))


@plays(recorded.held)
async def test_what_is_typed_behind_a_key_that_opens_something_goes_there(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    burst(app, "m", "s", "S", "r", "enter")  # a note of three letters, and no stop
    await until(pilot, lambda: bool(requests(run)), "a request")
    assert on_dashboard(app)
    (request,) = requests(run)
    assert request.args.text == "sSr"


@pytest.mark.thorough
def test_what_is_typed_while_a_dialog_is_slow_to_open_goes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a first dialog takes longer than a key is usually waited for."""
    compose = AskLine._compose

    async def slowly(self: AskLine) -> None:
        await asyncio.sleep(2 * WAIT_S)
        await compose(self)

    monkeypatch.setattr(AskLine, "_compose", slowly)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        burst(app, "/", *"loss")
        await until(pilot, lambda: isinstance(app.screen, AskLine), "the prompt")
        await until(
            pilot,
            lambda: [field.value for field in app.screen.query(Input)] == ["loss"],
            "what was typed behind it",
        )

    drive(recorded.held(tmp_path / "run"), play)


def test_what_is_typed_before_anything_was_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.Event()
    refresh = SnapshotReader.refresh

    def late(self: SnapshotReader) -> Snapshot:
        reading.wait(20)
        return refresh(self)

    monkeypatch.setattr(SnapshotReader, "refresh", late)
    run = recorded.held(tmp_path / "run")
    app = StokerApp(run, clock=clock_after(run))

    async def play() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            burst(app, "m", "l", "r", "enter")
            await pilot.pause(10 * RETRY_S)
            assert app.dashboard.snapshot is None
            reading.set()
            await until(pilot, lambda: bool(requests(run)), "a request")

    with keeper_of(run):
        asyncio.run(play())
    (request,) = requests(run)
    assert request.args.text == "lr"
