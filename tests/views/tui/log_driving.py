"""Opening the log screen of a recorded run, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.logs.reading import LogAt, Page
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.logs.page import LogPanel
from supervisor.views.tui.logs.screen import LogScreen
from tests.views.tui import recorded
from tests.views.tui.driving import until


async def opened(app: StokerApp, pilot: Pilot[None], at: LogAt | None = None) -> LogScreen:
    if at is None:
        await pilot.press("L")
    else:
        app.dashboard.log_of_run.open(at)
    await until(
        pilot,
        lambda: isinstance(app.screen, LogScreen) and any(each.page for each in app.screen.query(LogPanel)),
        "the logs",
    )
    assert isinstance(app.screen, LogScreen)
    return app.screen


def page(screen: LogScreen) -> Page:
    found = screen.log_page.page
    assert found is not None
    return found


def cursor(screen: LogScreen) -> str:
    row = screen.log_page.row
    return row.text if row is not None else ""


async def settled(pilot: Pilot[None], condition: Callable[[], bool], what: str) -> None:
    await until(pilot, condition, what)
    await pilot.pause()


def counted(root: Path, lines: int = 3_000) -> tuple[RunPaths, recorded.Recording]:
    rec = recorded.Recording(root, ranks=1, gpus=0)
    rec.launch("first start")
    path = rec.run.node().attempt(1).root / f"{recorded.TREE}/0/stdout.log"
    path.write_bytes(
        b"".join(b"line %d of the log%s\n" % (n, b" ERROR" * (n % 100 == 7)) for n in range(1, lines + 1))
    )
    return rec.close(), rec
