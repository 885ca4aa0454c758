"""List known runs, newest first: state, steps, verdict, where."""

from __future__ import annotations

import argparse
import os
import sys

from supervisor.cli.common import add_runs_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_runs_dir(parser)
    parser.add_argument("-n", "--number", type=int, default=20, help="how many to list (default 20)")


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from supervisor.run.index import known_runs, runs_dir
    from supervisor.run.journal import read_state
    from supervisor.run.lock import keeper_is_alive
    from supervisor.run.state import Finished

    place = runs_dir(args.runs_dir, os.environ)
    found = known_runs(place, os.environ)
    if not found:
        print(f"no run under {place} and none in the index: start one with `stoker run`", file=sys.stderr)
        return 0
    for run_paths in found[: max(args.number, 0)]:
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
