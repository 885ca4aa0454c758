"""The screens in Chinese: nothing of ours is left in English, columns line up, pictures at two sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, Lang
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.widgets.paint import fit, wrap
from tests.views.tui import recorded
from tests.views.tui.camera import stand_still
from tests.views.tui.driving import clock_after, is_read, keeper_of, shown, until

STATES: dict[str, Callable[[Path], RunPaths]] = {
    "healthy": recorded.healthy,
    "held": recorded.held,
}
NAME = "20261121-1412-brave-otter"


def app_of(run: RunPaths) -> StokerApp:
    return StokerApp(run, clock=clock_after(run), appearance=Appearance(lang=Lang.ZH))


def test_plain_ascii_is_english_and_says_so(tmp_path: Path) -> None:
    run = recorded.empty(tmp_path / NAME)
    app = StokerApp(run, clock=clock_after(run), appearance=Appearance(ascii=True, lang=Lang.ZH))
    assert app.tr("elapsed") == "elapsed"

    async def play() -> None:
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await until(pilot, lambda: "Chinese cannot be written in" in shown(app), "the remark")
            assert shown(app).isascii()

    asyncio.run(play())


def test_wide_characters_are_fitted_and_wrapped_by_cells() -> None:
    assert fit("显存不足", 6) == "显存 …"
    assert fit("显存", 6, right=True) == "  显存"
    assert wrap("减小 device_batch_size（现为 16）：8 可整除", 12, 9) == [
        "减小",
        "device_batc…",
        "（现为",
        "16）：8 可整",
        "除",
    ]


@pytest.mark.parametrize(
    ("state", "keys"),
    [
        ("healthy", ()),
        ("held", ("v",)),
        ("healthy", ("question_mark",)),
    ],
    ids=["dashboard", "failure", "help"],
)
def test_picture(
    snap_compare: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    keys: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)  # the failure page shows a path, which must be the same everywhere
    run = STATES[state](Path(NAME))
    app = app_of(run)

    async def settle(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: is_read(app), "the whole of the run")
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        await stand_still(app, pilot)

    with keeper_of(run):
        assert snap_compare(app, terminal_size=(80, 24), run_before=settle)
