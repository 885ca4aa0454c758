"""Opening the app on a run directory, and what is said after it is left."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from supervisor.run.index import state_home
from supervisor.run.journal import read_state
from supervisor.run.lock import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.state import Backoff, Finished, HeldOpen, RunState
from supervisor.text.decode import strip_escapes
from supervisor.views.glimpse import Glimpse
from supervisor.views.logs import logs_of
from supervisor.views.speech import speech
from supervisor.views.taste import Taste
from supervisor.views.tui.garbage import held_back


def show(
    run: RunPaths,
    *,
    read_only: bool,
    env: Mapping[str, str],
    taste: Taste,
    state: RunState | None = None,
) -> int:
    """Open the app; print how to come back. Exit 0 when a live run is left, else the run's own code.

    `state`: the run as it was just now, whose newest log is shown until the app is there.
    """
    adopter = None if read_only else partial(adopt, env)
    with held_back(), Glimpse() as glimpse:
        log = newest_log(run, state) if state is not None else None
        if state is not None and log is not None:
            glimpse.show(log, env, name=state.name, plain_ascii=taste.ascii)

        from supervisor.views.tui.terminal import run_tui

        glimpse.hand_over()
        run_tui(run, read_only=read_only, adopt=adopter, taste=taste, keep=kept_file(env))
    state = read_state(run.node().journal)
    tr = speech(taste.spoken)
    if isinstance(state.condition, Finished):
        said = f"{run.run_id}: {state.condition.outcome.replace('_', ' ')}: {state.condition.reason}"
        print(strip_escapes(tr(said)))  # a folder that somebody copied here may hold anything
        return state.condition.exit_code
    if keeper_is_alive(run.node().lock):
        match state.condition:
            case HeldOpen():
                what = "the run stays held: nothing trains"
            case Backoff():
                what = "the next attempt starts by itself"
            case _:
                what = "training goes on"
        print(tr(f"{what}; come back with: stoker attach {run.run_id}"))
    else:
        print(tr(f"this run has no keeper; adopt it with: stoker attach {run.run_id}"))
    return 0


def newest_log(run: RunPaths, state: RunState) -> str | None:
    """The log of the newest attempt that was written last; None while none has anything."""
    found = []
    for ref in logs_of(state, run.node(), state.attempts[-1:]):
        with suppress(OSError):
            info = ref.path.stat()
            found += [(info.st_mtime, str(ref.path))] if info.st_size else []
    return max(found)[1] if found else None


def kept_file(env: Mapping[str, str]) -> Path:
    """Where the app remembers a person's choices."""
    return state_home(env) / "ui.json"


def adopt(env: Mapping[str, str], run: RunPaths) -> None:
    """Give a run whose keeper died a new one. Raises what `start_detached` does."""
    from supervisor.keeper.detach import start_detached

    start_detached(run, env)
