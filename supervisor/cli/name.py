"""Name a run: the list of runs shows it by that name, and every command finds it by it. Nothing is written into its folder."""

from __future__ import annotations

import argparse
import os

from supervisor.cli.common import ACTED_ON, acted_on, add_runs_dir, complain, say

VERB = "name"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("run", metavar="RUN", help=ACTED_ON)
    parser.add_argument("name", metavar="NAME", help="what the run is called from now on")
    add_runs_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 2: no such run, or no name."""
    from supervisor.run.index import give_name

    found = acted_on(VERB, args.run, args.runs_dir)
    try:
        say(f"{found.run_id}: named {give_name(found, args.name, os.environ)}")
    except ValueError as error:
        return complain(VERB, error)
    return 0
