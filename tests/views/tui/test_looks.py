"""Themes and plain ASCII."""

from __future__ import annotations

from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import plays


@plays(recorded.backing_off, appearance=Appearance(ascii=True))
async def test_ascii_leaves_no_other_glyph(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    for key in ("shift", "question_mark", "v", "M", "colon", "b"):
        await pilot.press(key)
        await pilot.pause()
        picture = app.export_screenshot()
        text = picture[picture.rindex("</clipPath>") :].replace("&#160;", " ")
        assert text.isascii(), (key, sorted({c for c in text if not c.isascii()}))
        await pilot.press(*(() if key == "shift" else ("escape",)))


@plays(recorded.healthy, appearance=Appearance(ThemeName.LIGHT))
async def test_the_next_theme_lasts_as_long_as_the_app(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    seen = [app.theme]
    for _ in range(2):
        await pilot.press("T")
        seen.append(app.theme)
    assert seen == ["stoker-light", "stoker-safe", "stoker-dark"]
    assert "theme dark" in [told.message for told in app._notifications]
