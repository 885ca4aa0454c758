"""List known runs, newest first: state, steps, verdict, where."""

from __future__ import annotations

import argparse
import os
import sys

from supervisor.cli.common import add_runs_dir, complain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_runs_dir(parser)
    parser.add_argument(
        "--all", action="store_true", help="also the runs in other folders that this user started"
    )
    parser.add_argument("-n", "--number", type=int, default=20, help="how many to list (default 20)")


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from supervisor.run.index import is_under, known_runs, runs_dir
    from supervisor.run.journal import read_state
    from supervisor.run.lock import keeper_is_alive
    from supervisor.run.state import Finished

    place = runs_dir(args.runs_dir, os.environ)
    if place.exists() and not place.is_dir():
        return complain("runs", f"{place}: not a folder")
    known = known_runs(place, os.environ)
    here = [found for found in known if is_under(found, place)]
    shown = known if args.all else here
    elsewhere = len(known) - len(here)
    if not shown:
        print(f"no run under {place}: start one with `stoker run`", file=sys.stderr)
    if elsewhere and not args.all:
        print(f"{elsewhere} in other folders: `stoker runs --all`", file=sys.stderr)
    for run_paths in shown[: max(args.number, 0)]:
        state = read_state(run_paths.node().journal)
        if isinstance(state.condition, Finished):
            word = str(state.condition.outcome)
        else:
            word = "live" if keeper_is_alive(run_paths.node().lock) else "no keeper"
        attempt = state.attempt
        step = "-" if attempt is None or attempt.last_step is None else str(attempt.last_step)
        total = f"/{state.total_steps}" if state.total_steps else ""
        verdict = next((str(a.verdict.failure) for a in reversed(state.attempts) if a.verdict), "-")
        print(
            f"{run_paths.run_id:34} {word:10} attempt {len(state.attempts):<3} step {step + total:12} {verdict:16} {run_paths.root}"
        )
    return 0
