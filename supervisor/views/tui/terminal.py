"""The app on this terminal until the person quits. Call each function in the main thread, on a terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.tui.app import StokerApp

if TYPE_CHECKING:
    from supervisor.views.model.replay import Recording, ReplayClock

# The reading thread yields to a key within a millisecond; Python's own 5 ms are noticeable under load.
SWITCH_S = 0.001

P = ParamSpec("P")


def replay_app(
    recording: Recording,
    clock: ReplayClock | None = None,
    *,
    speed: float | None = None,
    appearance: Appearance = USUAL,
    keep: Path | None = None,
) -> StokerApp:
    """The app on recorded time; `speed` None: fits its length."""
    from supervisor.views.model.replay import ReplayClock

    clock = clock or ReplayClock(recording.start_t, recording.end_t, speed=speed, waits=True)
    replay = recording, clock
    return StokerApp(
        recording.run, clock=clock.now, read_only=True, appearance=appearance, keep=keep, replay=replay
    )


def _shown(make: Callable[P, StokerApp]) -> Callable[P, None]:
    """Makes the app from the same arguments, and runs it."""

    def show(*args: P.args, **kwargs: P.kwargs) -> None:
        app = make(*args, **kwargs)
        app.takes_signals = True
        sys.setswitchinterval(SWITCH_S)
        try:
            with terminal_on_stderr():
                app.run()
        finally:
            signal.alarm(0)  # it quit in time

    return show


run_tui = _shown(StokerApp)
"""Show a run, or without one the list of runs."""
run_replay = _shown(replay_app)
"""Play a recorded run."""


@contextmanager
def terminal_on_stderr() -> Iterator[None]:
    """Textual draws on descriptor 2. Under `2>err.log`, that is stdout's terminal while the app runs; log records still go to the file."""
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
