"""`stoker` alone on a terminal: the list of live and past runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial


def browse(env: Mapping[str, str]) -> int:
    """Open the list of runs until the person leaves it; exit code 0."""
    from supervisor.cli.common import complain
    from supervisor.cli.screen import adopt, kept_file
    from supervisor.cli.tastes import taste_from
    from supervisor.run.index import known_runs, runs_dir
    from supervisor.run.trash import empty
    from supervisor.views.taste import BadTaste
    from supervisor.views.tui.terminal import run_browser

    try:
        taste = taste_from({}, env)
    except BadTaste as error:
        return complain("runs", str(error))
    place = runs_dir(None, env)
    empty(place)
    run_browser(lambda: known_runs(place, env), adopt=partial(adopt, env), taste=taste, keep=kept_file(env))
    return 0
