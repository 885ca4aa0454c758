"""Themes and plain ASCII."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive


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


def test_the_next_theme_lasts_as_long_as_the_app(tmp_path: Path) -> None:
    async def choose(app: StokerApp, pilot: Pilot[None]) -> None:
        seen = [app.theme]
        for _ in range(2):
            await pilot.press("T")
            seen.append(app.theme)
        assert seen == ["stoker-light", "stoker-safe", "stoker-dark"]
        assert "theme dark" in [told.message for told in app._notifications]

    drive(recorded.healthy(tmp_path / "run"), choose, appearance=Appearance(ThemeName.LIGHT))
