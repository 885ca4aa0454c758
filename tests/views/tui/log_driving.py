"""Opening the log of a recorded run alone, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.logs.reading import LogAt, Page
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.pages.log_pane import LogPanel
from tests.views.tui import recorded
from tests.views.tui.driving import until


async def opened(app: StokerApp, pilot: Pilot[None], at: LogAt | None = None) -> LogPanel:
    if at is None:
        await pilot.press("L")
    else:
        app.dashboard.looking.open_log(at)
    log = app.dashboard.panes.log
    await until(pilot, lambda: log.is_whole and log.has_focus and log.size.height > 20, "the log alone")
    return log


def page(log: LogPanel) -> Page:
    assert log.page is not None
    return log.page


def cursor(log: LogPanel) -> str:
    return log.row.text if log.row is not None else ""


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
