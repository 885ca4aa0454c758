"""The app on this terminal until the person leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.garbage import held_back
from supervisor.views.tui.terminal_output import terminal_on_stderr

if TYPE_CHECKING:
    from supervisor.run.journal import StateReader
    from supervisor.views.model.replay import Recording, ReplayClock
    from supervisor.views.model.run_list import Scope
    from supervisor.views.tui.request_client import Adopter

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
    """Show a run until the person leaves.

    Must be called in the main thread, on a terminal.

    Args:
        run: the run directory.
        read_only: no requests can be sent.
        adopter: takes over a run whose keeper died.
        continuer: starts the next attempt of a run that is over.
        appearance: how it looks.
        keep: the file that remembers choices.
        painted: called once the run's first moment is on the screen.
        journal: the run's, where it was read.
    """
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
    """Play a run until the person leaves; `speed` None: as fits its length. Must be called in the main thread, on a terminal."""
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
    """Show the list of runs until the person leaves.

    Must be called in the main thread, on a terminal.
    """
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
    with held_back(), terminal_on_stderr():
        app.run()
