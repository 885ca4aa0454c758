"""The app on this terminal until the person leaves, and what is printed then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.garbage import held_back
from supervisor.views.tui.terminal_output import terminal_on_stderr
from supervisor.views.tui.widgets.paint import plain
from supervisor.views.wording.translate import Tr, english

if TYPE_CHECKING:
    from supervisor.run.journal import StateReader
    from supervisor.views.model.replay import Recording, ReplayClock
    from supervisor.views.model.run_list import Scope
    from supervisor.views.tui.request_client import Adopter

# The reading thread gives way to a key within a millisecond; Python's own 5 ms are felt while logs pour in.
SWITCH_S = 0.001


@dataclass(frozen=True, slots=True)
class TuiResult:
    """How things stood when the view was left. `lines`: what a person should read on the plain terminal."""

    run: RunPaths
    live: bool
    outcome: Outcome | None
    exit_code: int | None
    lines: tuple[str, ...]


def result_of(run: RunPaths, snapshot: Snapshot | None, tr: Tr = english) -> TuiResult:
    """What is left on the terminal after leaving."""
    state = snapshot.state if snapshot else None
    if state is not None and isinstance(state.condition, Finished):
        end = state.condition
        values = {"run": run.run_id, "outcome": end.outcome, "reason": end.reason, "exit_code": end.exit_code}
        lines = (plain(tr.sentence("parting", "over", values)), plain(tr(f"directory {run.root}")))
        return TuiResult(run, False, end.outcome, end.exit_code, lines)
    if snapshot is None or snapshot.gone:
        gone = tr(f"{run.root}: the run directory is gone")
        return TuiResult(run, False, None, None, (gone,) if snapshot else ())
    back = f"stoker attach {run.run_id}"
    if not snapshot.keeper_alive:
        take = f"its supervisor process is gone; `stoker attach --adopt {run.run_id}` takes over what lives of it"
        alone = "it is no longer watched" if snapshot.state.mode == "observed" else take
        text = f"{run.run_id}: {snapshot.misplaced or alone}"
    else:
        text = f"{run.run_id}: training continues; come back with `{back}`"
    return TuiResult(run, True, None, None, (tr(text),))


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
) -> TuiResult:
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
    app = StokerApp(
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
    _show(app)
    return result_of(run, app.dashboard.snapshot, app.tr)


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
