"""Themes, plain ASCII, sizes of panes and the order of ranks, each remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.widgets.textual_theme import load
from tests.views.tui import recorded
from tests.views.tui.driving import clock_after, is_read, keeper_of, pane, until


def drive(
    run: RunPaths,
    scenario: Callable[[StokerApp, Pilot[None]], Awaitable[None]],
    appearance: Appearance,
    keep: Path | None = None,
    size: tuple[int, int] = (120, 40),
) -> None:
    app = StokerApp(run, clock=clock_after(run), appearance=appearance, keep=keep)

    async def play() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: is_read(app), "the whole of the run")
            await pilot.pause()
            await scenario(app, pilot)

    with keeper_of(run):
        asyncio.run(play())


@pytest.mark.parametrize("maker", [recorded.healthy, recorded.backing_off])
def test_ascii_leaves_no_other_glyph(tmp_path: Path, maker: Callable[[Path], RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        for key in ("shift", "question_mark", "v", "M", "colon", "b"):
            await pilot.press(key)
            await pilot.pause()
            picture = app.export_screenshot()
            text = picture[picture.rindex("</clipPath>") :].replace("&#160;", " ")
            assert text.isascii(), (key, sorted({c for c in text if not c.isascii()}))
            await pilot.press(*(() if key == "shift" else ("escape",)))

    drive(maker(tmp_path / "run"), play, Appearance(ascii=True))


def test_themes_are_gone_through_and_the_last_is_remembered(tmp_path: Path) -> None:
    keep = tmp_path / "ui.json"

    async def choose(app: StokerApp, pilot: Pilot[None]) -> None:
        seen = [app.theme]
        for _ in range(2):
            await pilot.press("T")
            seen.append(app.theme)
        assert seen == ["stoker-dark", "stoker-light", "stoker-safe"]
        await until(pilot, lambda: "theme safe" in pane(app, "notice"), "its name")

    drive(recorded.healthy(tmp_path / "run"), choose, Appearance(), keep)
    assert load(keep).theme == "stoker-safe"

    async def look(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.theme == "stoker-safe"

    drive(RunPaths(tmp_path / "run"), look, Appearance(), keep)

    async def told(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.theme == "stoker-light", "what is asked for now comes before what was chosen once"

    drive(RunPaths(tmp_path / "run"), told, Appearance(ThemeName.LIGHT), keep)
