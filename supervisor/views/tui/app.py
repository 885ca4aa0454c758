"""The app: one screen on one run directory, and the thread that reads it.

Leaving never ends anything: the app only reads, and what it asks goes through a keeper.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.views.snapshot import Snapshot, SnapshotReader
from supervisor.views.tui.desk import Answer, Desk
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.screens.dashboard import Dashboard
from supervisor.views.tui.themes import DARK, LIGHT

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class TuiResult:
    """How things stood when the view was left. `lines`: what a person should read on the plain terminal."""

    run: RunPaths
    live: bool
    outcome: Outcome | None
    exit_code: int | None
    lines: tuple[str, ...]


class StokerApp(App[None]):
    """The dashboard of one run.

    Args:
        run: the run directory.
        read_only: no requests can be sent.
        adopt: adopts the run when its keeper died; called in the reading thread, may raise.
        clock: wall time, for ages and times on the screen.
        light: the light theme.
        signals: SIGTERM and SIGHUP leave as `q` does, so that the terminal is given back whole.
    """

    CSS_PATH = "stoker.tcss"
    TITLE = "stoker"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "leave", "leave", show=False, priority=False),
    ]

    class Read(Message):
        """The reading thread has a new moment of the run."""

        def __init__(self, snapshot: Snapshot) -> None:
            super().__init__()
            self.snapshot = snapshot

    class Trouble(Message):
        """The reading thread failed at something."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(
        self,
        run: RunPaths,
        *,
        read_only: bool = False,
        adopt: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
        light: bool = False,
        signals: bool = False,
    ) -> None:
        super().__init__()
        self._signals = SIGNALS if signals else ()
        self.run_paths = run
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = LIGHT.name if light else DARK.name
        self._feeder = Feeder(
            SnapshotReader(run),
            deliver=lambda snapshot: self.post_message(self.Read(snapshot)),
            trouble=lambda text: self.post_message(self.Trouble(text)),
        )
        self.dashboard = Dashboard(Desk(run), self._feeder, clock, read_only=read_only, adopt=adopt)

    async def on_mount(self) -> None:
        """Open the dashboard, and only then begin to read: a snapshot's log lines come once."""
        await self.push_screen(self.dashboard)
        for number in self._signals:
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._feeder.start()

    def on_unmount(self) -> None:
        """End the reading thread."""
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._feeder.stop()

    def on_stoker_app_read(self, message: Read) -> None:
        """Show it, then let the thread read on."""
        self.dashboard.take(message.snapshot)
        self._feeder.taken()

    def on_stoker_app_trouble(self, message: Trouble) -> None:
        """Say it."""
        self.dashboard.tell(Answer(message.text, False))

    def action_leave(self) -> None:
        """Leave; training goes on."""
        self.exit()

    def result(self) -> TuiResult:
        """How things stand."""
        return result_of(self.run_paths, self.dashboard.snapshot)


def result_of(run: RunPaths, snapshot: Snapshot | None) -> TuiResult:
    """What is said on the terminal after leaving."""
    state = snapshot.state if snapshot else None
    if state is not None and isinstance(state.condition, Finished):
        end = state.condition
        said = f"{run.run_id}: {end.outcome.replace('_', ' ')}: {end.reason} (exit code {end.exit_code})"
        return TuiResult(run, False, end.outcome, end.exit_code, (said, f"directory {run.root}"))
    if snapshot is None or snapshot.gone:
        return TuiResult(
            run, False, None, None, (f"{run.root}: the run directory is gone",) if snapshot else ()
        )
    back = f"stoker attach {run.run_id}"
    if not snapshot.keeper_alive:
        return TuiResult(run, True, None, None, (f"{run.run_id}: its keeper is gone; `{back}` adopts it",))
    return TuiResult(run, True, None, None, (f"{run.run_id}: training goes on; come back with `{back}`",))


def run_tui(
    run: RunPaths,
    *,
    read_only: bool = False,
    adopt: Callable[[], None] | None = None,
    light: bool = False,
) -> TuiResult:
    """Show a run until the person leaves. Must be called in the main thread, on a terminal."""
    app = StokerApp(run, read_only=read_only, adopt=adopt, light=light, signals=True)
    app.run()
    return app.result()
