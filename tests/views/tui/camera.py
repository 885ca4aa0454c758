"""Pictures of the app on recorded runs: for the kept ones of the tests and for those of the documentation."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.model.replay import ReplayClock, record_of
from supervisor.views.tui.app import StokerApp, replay_app
from supervisor.views.tui.widgets.textual_theme import THEMES
from tests.views.tui import recorded
from tests.views.tui.driving import clock_after, is_read, keeper_of, shown, until

NAME = "20261121-1412-brave-otter"
STILL = 2  # so many looks in a row must be alike
LOOK_S = 0.03


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: keys pressed on the first screen, words that must be seen before it is taken.

    `keys` None: the screen as it is. A key given as ``"=text"`` is typed letter by letter.
    """

    name: str
    keys: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


async def press(pilot: Pilot[None], keys: Sequence[str]) -> None:
    """Press keys; ``"=text"`` is typed."""
    for key in keys:
        await pilot.press(*(key[1:] if key.startswith("=") else [key]))
        await pilot.pause()


async def photograph(app: StokerApp, pilot: Pilot[None], shot: Shot, title: str = "stoker") -> str:
    """The picture as SVG, once the screen shows the words and stands still."""
    await until(
        pilot, lambda: all(word in shown(app) for word in shot.words), f"{shot.words} for {shot.name}"
    )
    await stand_still(app, pilot)
    return app.export_screenshot(title=title)


def shown_in_colour(app: StokerApp) -> str:
    """The screen as a terminal would get it: text and colour sequences."""
    console = Console(
        width=app.size.width,
        height=app.size.height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        record=True,
        legacy_windows=False,
        safe_box=False,
    )
    console.print(app.screen._compositor.render_update(full=True, screen_stack=app._background_screens))
    return console.export_text(styles=True)


async def stand_still(app: StokerApp, pilot: Pilot[None]) -> None:
    """Wait until the screen stays as it is, with every cursor shown."""
    for field in (*app.screen.query(Input), *app.screen.query(TextArea)):
        field.cursor_blink = False
        field._cursor_visible = True  # it may just have blinked
    alike, before = 0, app.screen._compositor.render_strips()
    while alike < STILL:
        await pilot.pause(LOOK_S)
        now = app.screen._compositor.render_strips()  # colours too: a theme takes a moment
        alike, before = (alike + 1 if now == before else 0), now


def run_app(run: RunPaths, appearance: Appearance, later_s: float = 2.0) -> StokerApp:
    """The app on a recorded run; its clock stands."""
    return StokerApp(run, clock=clock_after(run, later_s), appearance=appearance)


def replayed(run: RunPaths, appearance: Appearance, share: float) -> StokerApp:
    """A replay that stands at a share of its whole."""
    recording = record_of(run)
    clock = ReplayClock(recording.start_t, recording.end_t, monotonic=lambda: 0.0)
    clock.toggle()
    clock.seek(recording.start_t + share * (recording.end_t - recording.start_t))
    return replay_app(recording, clock, appearance=appearance)


def browsed(runs: list[RunPaths], appearance: Appearance) -> StokerApp:
    """The list of runs."""
    return StokerApp(None, known=lambda: runs, clock=lambda: recorded.T0 + 9000, appearance=appearance)


def some_runs(folder: Path) -> list[RunPaths]:
    """One that trains, then a held, a failed, a watched and two finished runs."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        recorded.healthy(folder / "20261121-1412-brave-otter"),
        recorded.held(folder / "20261121-1410-calm-crane"),
        recorded.failed(folder / "20261121-1355-quiet-finch"),
        recorded.observed(folder / "20261120-1730-plain-wren", folder / "train.log"),
        recorded.succeeded(folder / "20261120-0900-able-ant"),
        _slower(folder / "20261119-0815-mild-moth"),
    ]


class _Slower(recorded.Recording):
    """A run that learns less: its curve stands beside the other's."""

    def loss(self, step: int) -> float:
        return super().loss(step) + 0.5 * (1 - math.exp(-step / 300))


def _slower(root: Path) -> RunPaths:
    rec = _Slower(root, name="gpt-d12-sgd", total_steps=1000, micro=8, accumulation=4)
    rec.launch("first start")
    rec.steps(5, 1000, every=5)
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=0, last_step=1000, rank_exit_codes={0: 0, 1: 0}))
    rec.fact(ev.RunEnded(t=rec.t, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="1000 of 1000 steps"))
    return rec.close()


def shoot(
    app: StokerApp,
    run: RunPaths | None,
    shots: Sequence[Shot],
    sizes: Sequence[tuple[int, int]],
    themes: Sequence[ThemeName] = (),
) -> dict[str, str]:
    """Pictures by name: each shot at each size in each theme, all in one app; Esc leads from one to the next."""
    found: dict[str, str] = {}

    async def play() -> None:
        async with app.run_test(size=sizes[0]) as pilot:
            await until(pilot, lambda: opened(app), "the first screen")
            for shot in shots:
                await press(pilot, shot.keys)
                for size in sizes:
                    await pilot.resize_terminal(*size)
                    for theme in themes or (None,):
                        if theme is not None:
                            app.theme = THEMES[theme].name
                        name = f"{shot.name}-{size[0]}x{size[1]}{f'-{theme}' if theme else ''}"
                        found[name] = await photograph(app, pilot, shot)
                await press(pilot, ["escape"] if shot is not shots[-1] else [])

    with keeper_of(run) if run is not None else contextlib.nullcontext():
        asyncio.run(play())
    return found


def opened(app: StokerApp) -> bool:
    """Whether there is something to look at."""
    if app.browser is not None:
        return bool(app.browser.panel.list and app.browser.panel.list.complete)
    try:
        return is_read(app)
    except LookupError:
        return False
