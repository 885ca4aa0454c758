"""`stoker` alone on a terminal: the list of live and past runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

from supervisor.cli.appearance_flags import add_appearance_flags, appearance_from
from supervisor.cli.common import add_scope, complain


def main(argv: list[str]) -> int:
    """Open the list of runs until the person leaves it; exit code 0, 2 for what it does not know."""
    from supervisor.cli.parsing import Parser

    parser = Parser(prog="stoker", description=__doc__)
    add_scope(parser)
    add_appearance_flags(parser)
    return browse(parser.parse_args(argv), os.environ)


def browse(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Open the list of runs."""
    from supervisor.run.index import known_runs, runs_dir
    from supervisor.views.appearance import BadAppearance

    try:
        appearance = appearance_from(vars(args), env)
    except BadAppearance as error:
        return complain("runs", str(error))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return complain("runs", "the list of runs needs a terminal: `stoker runs` prints it")
    from supervisor.cli.open_app import adopter, kept_file
    from supervisor.views.model.run_list import Scope
    from supervisor.views.tui.terminal import run_browser

    place = runs_dir(args.runs_dir, env)
    run_browser(
        lambda: known_runs(place, env),
        scope=Scope(place, everywhere=args.all),
        adopter=adopter(env),
        appearance=appearance,
        keep=kept_file(env),
    )
    return 0
