"""Open the app on a run directory. After it closes, print how to reopen it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from supervisor.cli.common import say, without_keeper
from supervisor.run.journal import StateReader, read_state
from supervisor.run.ownership import Offer, has_keeper, place_of
from supervisor.run.paths import RunPaths
from supervisor.run.state import Backoff, Finished, HeldOpen
from supervisor.views.appearance import Appearance
from supervisor.views.wording.translate import words_in

if TYPE_CHECKING:
    from supervisor.views.tui.shell.feeder import Adopter


def show(
    run: RunPaths,
    *,
    read_only: bool,
    env: Mapping[str, str],
    appearance: Appearance,
    journal: StateReader | None = None,
) -> int:
    """Open the app, then print how to reopen it. Exit 0 if the run can continue, else with the run's own code.

    Args:
        run: the run directory.
        read_only: never send requests.
        env: the environment.
        appearance: the app's appearance.
        journal: the run's journal if it has already been read, so the run is shown immediately.
    """
    run_tui = load_app()
    run_tui(
        run,
        read_only=read_only,
        adopter=None if read_only else adopter(env),
        continuer=None if read_only else continuer(env),
        appearance=appearance,
        journal=journal,
    )
    tr = words_in(appearance.spoken)
    if not run.root.is_dir():
        say(tr(f"{run.root}: the run directory is gone"))
        return 0
    state = read_state(run.node().journal)
    if isinstance(state.condition, Finished):
        values = {"run": run.run_id, "outcome": state.condition.outcome, "reason": state.condition.reason}
        say(tr.sentence("parting", "over", values))
        from supervisor.views.headless.story import trial_lines  # imported late, to delay no start

        for line in trial_lines(state, run, tr):
            say(line)
        return state.condition.exit_code
    if notice := place_of(run).refusal:
        say(tr(f"{run.run_id}: {notice}"))
    elif has_keeper(run):
        match state.condition:
            case HeldOpen():
                from supervisor.views.tui.panels.state_words import is_held_unwatched

                held = is_held_unwatched(state)
                ends = "the run ends in half a minute unless somebody looks"  # keeper.loop.UNWATCHED_S
                what = "the run keeps waiting for you: nothing trains" if held else ends
            case Backoff():
                what = "the next attempt starts by itself"
            case _:
                what = "training continues"
        say(tr(f"{what}; come back with: stoker attach {run.run_id}"))
    else:
        say(tr(without_keeper(run, state)))
    if not isinstance(state.condition, HeldOpen):
        return 0
    from supervisor.policy import EXIT_FAILED

    # As without a screen, if there is no answer.
    decision = state.condition.decision
    return (decision.exit_code if decision is not None else None) or EXIT_FAILED


def load_app() -> Callable[..., None]:
    """Import the app and its rendering library, which takes up most of the startup time."""
    from supervisor.views.tui.app import run_tui

    return run_tui


def continuer(env: Mapping[str, str]) -> Adopter:
    """Return the action for the r key on a finished run: start the next attempt, like `stoker continue`."""
    from supervisor.views.tui.shell.feeder import Adopter

    def examine(run: RunPaths) -> Offer:
        from supervisor.cli.continuing import next_attempt

        return next_attempt(run, env)[0]

    def start(run: RunPaths) -> None:
        from supervisor.cli.continuing import start_next

        start_next(run, env)

    return Adopter(examine, start)


def adopter(env: Mapping[str, str]) -> Adopter:
    """Return the action for the A key. The keeper's modules are imported only when the key is pressed."""
    from supervisor.views.tui.shell.feeder import Adopter

    def examine(run: RunPaths) -> Offer:
        from supervisor.keeper.process.takeover import examine_adoption

        return examine_adoption(run)[0]

    def adopt(run: RunPaths) -> None:
        from supervisor.cli.common import WITH_LOG
        from supervisor.keeper.process.takeover import adopt

        adopt(run, env, entry=WITH_LOG)

    return Adopter(examine, adopt)
