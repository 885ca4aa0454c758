"""Keys that arrive in one burst, as a slow line delivers them, are done one after another."""

from __future__ import annotations

from pathlib import Path

from textual import events
from textual.pilot import Pilot
from textual.widgets import TextArea

from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dialogs.edit import EditScreen
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, requests, until


def burst(app: StokerApp, *keys: str) -> None:
    """All of `keys` before the app does anything with the first."""
    for key in keys:
        name = {"/": "slash", ".": "full_stop", " ": "space", "-": "minus"}.get(key, key)
        app.post_message(events.Key(name, key if len(key) == 1 else None))


def test_letters_and_bindings_keep_their_order(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, EditScreen), "the dialog")
        area = app.screen.query_one(TextArea)
        area.text = "--lr 1.0"
        area.move_cursor(area.document.end)
        burst(app, *["backspace"] * 3, "0", ".", "5", "home", "delete", "delete", "a", " ")
        await until(pilot, lambda: area.text == "a lr 0.5", "what was typed, in order")

    drive(recorded.held(tmp_path / "run"), play)


def test_what_is_typed_behind_a_key_that_opens_something_goes_there(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        burst(app, "m", "s", "S", "r", "enter")  # a note of three letters, and no stop
        await until(pilot, lambda: bool(requests(run)), "a request")
        assert on_dashboard(app)

    drive(run, play)
    (request,) = requests(run)
    assert request.args.text == "sSr"
