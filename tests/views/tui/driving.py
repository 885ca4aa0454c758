"""Driving the app in tests: a recorded run, a fixed clock, conditions instead of sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from supervisor.run import control
from supervisor.run.journal import read_state
from supervisor.run.ownership import KeeperLock, Offer
from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell.feeder import Adopter
from supervisor.views.tui.shell.prompts import OfferScreen
from supervisor.views.tui.widgets.panel import Panel

DEADLINE_S = 20.0
OFFER = Offer(
    actions=(
        "takes over what lives of it: pid 12 (python3)",
        "starts a new supervisor process on this host (box)",
    )
)
Scenario = Callable[[StokerApp, Pilot[None]], Awaitable[None]]
Played = Callable[[StokerApp, Pilot[None], RunPaths], Awaitable[None]]


def clock_after(run: RunPaths, later_s: float = 2.0) -> Callable[[], float]:
    """A clock that stands `later_s` after the last fact."""
    now = (read_state(run.node().journal).last_t or 0.0) + later_s
    return lambda: now


@contextlib.contextmanager
def keeper_of(run: RunPaths, *, alive: bool = True) -> Iterator[None]:
    """The keeper's lock, held as a living keeper holds it."""
    if not alive or not run.node().root.is_dir():
        yield
        return
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        yield
    finally:
        lock.release()


def drive(
    run: RunPaths,
    scenario: Scenario,
    *,
    size: tuple[int, int] = (120, 40),
    keeper: bool = True,
    read_only: bool = False,
    adopt: Callable[[RunPaths], None] | None = None,
    offer: Offer = OFFER,
    later_s: float = 2.0,
    continuer: Adopter | None = None,
    appearance: Appearance = USUAL,
) -> StokerApp:
    """Open the app on a run, play a scenario, leave; no thread may be left."""
    adopter = Adopter(lambda _run: offer, adopt) if adopt is not None else None
    clock = clock_after(run, later_s)
    app = StokerApp(
        run,
        clock=clock,
        read_only=read_only,
        adopter=adopter,
        continuer=continuer,
        appearance=appearance,
    )

    async def play() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: is_read(app), "the whole of the run")
            await pilot.pause()
            await scenario(app, pilot)

    with keeper_of(run, alive=keeper):
        asyncio.run(play())
    assert "stoker-view-reader" not in [thread.name for thread in threading.enumerate()]
    return app


def plays(make: Callable[[Path], RunPaths], **how: Any) -> Callable[[Played], Callable[[Path], None]]:
    """A test that plays on the screen of a run that `make` records. `how`: see `drive`."""

    def tested(played: Played) -> Callable[[Path], None]:
        def test(tmp_path: Path) -> None:
            run = make(tmp_path / "run")
            drive(run, lambda app, pilot: played(app, pilot, run), **how)

        return test

    return tested


def is_read(app: StokerApp) -> bool:
    """Whether the dashboard shows the run with its run.json, where it has one: that is read a moment later."""
    snapshot = app.dashboard.snapshot
    run = app.run_paths
    has_file = run is not None and run.run_json.exists()
    page = app.dashboard.logs.page
    logs = run.root.glob("nodes/*/attempts/*/**/*.log") if run is not None else ()
    has_lines = page is not None and (bool(page.rows) or not any(log.stat().st_size for log in logs))
    return snapshot is not None and has_lines and (snapshot.run_file is not None or not has_file)


async def until(pilot: Pilot[None], condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; fails after a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        await pilot.pause(0.01)


async def offered(app: StokerApp, pilot: Pilot[None]) -> None:
    """Wait until what an action would do is asked."""
    await until(pilot, lambda: isinstance(app.screen, OfferScreen) and app.screen.is_shown, "the question")


def on_dashboard(app: StokerApp) -> bool:
    """Whether nothing is open over the dashboard."""
    return app.screen is app.dashboard


def shown(app: StokerApp) -> str:
    """The text of the screen that is on top."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def pane(app: StokerApp, name: str) -> str:
    """The text of one pane."""
    panel = app.dashboard.query_one(f"#{name}", Panel)
    return "\n".join(strip.text for strip in panel._strips)


def requests(run: RunPaths) -> list[control.Request]:
    """The requests that wait for the keeper."""
    found = control.pending(run.control)
    assert all(isinstance(request, control.Request) for request in found)
    return [request for request in found if isinstance(request, control.Request)]
