"""`stoker` alone on a terminal: the list of live and past runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from supervisor.cli.appearance_flags import add_appearance_flags, appearance_from
from supervisor.cli.common import add_scope, complain

if TYPE_CHECKING:
    from supervisor.views.splash.glimpse import Glimpse


def main(argv: list[str]) -> int:
    """Open the list of runs until the person leaves it; exit code 0, 2 for what it does not know."""
    from supervisor.cli.parsing import Parser

    parser = Parser(prog="stoker", description=__doc__)
    add_scope(parser)
    add_appearance_flags(parser)
    return browse(parser.parse_args(argv), os.environ)


def browse(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Open the list of runs."""
    from supervisor.views.splash.glimpse import Glimpse
    from supervisor.views.tui.garbage import held_back

    with held_back(), Glimpse() as glimpse:
        return _browse(args, env, glimpse)


def _browse(args: argparse.Namespace, env: Mapping[str, str], glimpse: Glimpse) -> int:
    from supervisor.run.index import known_runs, runs_dir
    from supervisor.views.appearance import BadAppearance

    try:
        appearance = appearance_from(vars(args), env)
    except BadAppearance as error:
        return complain("runs", str(error))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return complain("runs", "the list of runs needs a terminal: `stoker runs` prints it")
    from supervisor.cli.open_app import adopter, kept_file, load_app, look_of
    from supervisor.views.model.run_list import Scope
    from supervisor.views.splash.first_look import runs_scene
    from supervisor.views.wording.translate import words_in

    glimpse.show(runs_scene(words_in(appearance.spoken)), look_of(appearance, env), env)
    load_app()
    from supervisor.views.tui.terminal import run_browser

    place = runs_dir(args.runs_dir, env)
    run_browser(
        lambda: known_runs(place, env),
        scope=Scope(place, everywhere=args.all),
        adopter=adopter(env),
        appearance=appearance,
        keep=kept_file(env),
        begun=glimpse.hand_over(),
    )
    return 0
