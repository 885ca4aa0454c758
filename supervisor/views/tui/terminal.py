"""The app on this terminal until the person leaves. Each function must be called in the main thread, on a terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.tui.app import StokerApp

if TYPE_CHECKING:
    from supervisor.run.journal import StateReader
    from supervisor.views.model.replay import Recording, ReplayClock
    from supervisor.views.model.run_list import Scope
    from supervisor.views.tui.shell.request_client import Adopter

# The reading thread gives way to a key within a millisecond; Python's own 5 ms are felt while logs pour in.
SWITCH_S = 0.001


def run_tui(
    run: RunPaths,
    *,
    read_only: bool = False,
    adopter: Adopter | None = None,
    continuer: Adopter | None = None,
    appearance: Appearance = USUAL,
    keep: Path | None = None,
    painted: Callable[[], object] | None = None,
    journal: StateReader | None = None,
) -> None:
    """Show a run; the arguments are those of `StokerApp`."""
    _show(
        StokerApp(
            run,
            read_only=read_only,
            adopter=adopter,
            continuer=continuer,
            appearance=appearance,
            keep=keep,
            signals=True,
            painted=painted,
            journal=journal,
        )
    )


def run_replay(
    recording: Recording,
    *,
    speed: float | None = None,
    appearance: Appearance = USUAL,
    keep: Path | None = None,
) -> None:
    """Play a recorded run; `speed` None: as fits its length."""
    from supervisor.views.model.replay import ReplayClock

    clock = ReplayClock(recording.start_t, recording.end_t, speed=speed, waits=True)
    _show(replay_app(recording, clock, appearance=appearance, keep=keep, signals=True))


def replay_app(
    recording: Recording,
    clock: ReplayClock,
    *,
    appearance: Appearance = USUAL,
    keep: Path | None = None,
    signals: bool = False,
) -> StokerApp:
    """The app on recorded time."""
    return StokerApp(
        recording.run,
        clock=clock.now,
        read_only=True,
        appearance=appearance,
        keep=keep,
        signals=signals,
        replay=(recording, clock),
    )


def run_browser(
    known: Callable[[], list[RunPaths]],
    *,
    scope: Scope | None = None,
    adopter: Adopter | None = None,
    continuer: Adopter | None = None,
    appearance: Appearance = USUAL,
    keep: Path | None = None,
) -> None:
    """Show the list of runs."""
    _show(
        StokerApp(
            None,
            known=known,
            scope=scope,
            adopter=adopter,
            continuer=continuer,
            appearance=appearance,
            keep=keep,
            signals=True,
        )
    )


def _show(app: StokerApp) -> None:
    sys.setswitchinterval(SWITCH_S)
    try:
        with terminal_on_stderr():
            app.run()
    finally:
        signal.alarm(0)  # it left in time


@contextmanager
def terminal_on_stderr() -> Iterator[None]:
    """Textual draws on descriptor 2. Under `2>err.log`, that becomes stdout's terminal while the app runs; log records still go to the file."""
    if os.isatty(2):
        yield
        return
    kept = os.fdopen(os.dup(2), "w", errors="backslashreplace")
    log = logging.StreamHandler(kept)
    logging.getLogger().addHandler(log)
    os.dup2(1, 2)
    try:
        yield
    finally:
        os.dup2(kept.fileno(), 2)
        logging.getLogger().removeHandler(log)
        kept.close()
