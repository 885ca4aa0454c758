"""Themes, remembered, and plain ASCII."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.widgets.textual_theme import load
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, until


def test_ascii_leaves_no_other_glyph(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        for key in ("shift", "question_mark", "v", "M", "colon", "b"):
            await pilot.press(key)
            await pilot.pause()
            picture = app.export_screenshot()
            text = picture[picture.rindex("</clipPath>") :].replace("&#160;", " ")
            assert text.isascii(), (key, sorted({c for c in text if not c.isascii()}))
            await pilot.press(*(() if key == "shift" else ("escape",)))

    drive(recorded.backing_off(tmp_path / "run"), play, appearance=Appearance(ascii=True))


def test_themes_are_gone_through_and_the_last_is_remembered(tmp_path: Path) -> None:
    keep = tmp_path / "ui.json"

    async def choose(app: StokerApp, pilot: Pilot[None]) -> None:
        seen = [app.theme]
        for _ in range(2):
            await pilot.press("T")
            seen.append(app.theme)
        assert seen == ["stoker-dark", "stoker-light", "stoker-safe"]
        await until(pilot, lambda: "theme safe" in pane(app, "notice"), "its name")

    drive(recorded.healthy(tmp_path / "run"), choose, keep=keep)
    assert load(keep).theme == "stoker-safe"

    async def told(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.theme == "stoker-light", "what is asked for now comes before what was chosen once"

    run = RunPaths(tmp_path / "run")
    drive(run, told, appearance=Appearance(ThemeName.LIGHT), keep=keep)
