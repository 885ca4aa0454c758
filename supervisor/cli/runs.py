"""List known runs, newest first: state, steps, verdict, where."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from supervisor.cli.common import add_runs_dir, complain

if TYPE_CHECKING:
    from supervisor.run.paths import RunPaths


class Columns(NamedTuple):
    """What is said of a run."""

    run: str
    state: str
    attempt: str
    step: str
    verdict: str
    folder: str


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
    listed = [_columns(found) for found in shown[: max(args.number, 0)]]
    # A pipe gets all of it; a terminal what fits on one line.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines_of(listed, width):
        print(line)
    return 0


def _columns(run: RunPaths) -> Columns:
    from supervisor.run.journal import read_state
    from supervisor.run.lock import keeper_is_alive
    from supervisor.run.state import Finished

    state = read_state(run.node().journal)
    if isinstance(state.condition, Finished):
        word = str(state.condition.outcome)
    else:
        word = "live" if keeper_is_alive(run.node().lock) else "no keeper"
    attempt = state.attempt
    step = "-" if attempt is None or attempt.last_step is None else str(attempt.last_step)
    total = f"/{state.total_steps}" if state.total_steps else ""
    verdict = next((str(a.verdict.failure) for a in reversed(state.attempts) if a.verdict), "-")
    return Columns(
        run.run_id, word, f"attempt {len(state.attempts)}", f"step {step}{total}", verdict, str(run.root)
    )


def lines_of(runs: Sequence[Columns], width: int | None) -> list[str]:
    """One line a run, all in the same columns, of at most `width` cells; None: whole.

    What gives way, in this order: the folder, the attempt, the date in the id, the total of steps.
    """
    forms: list[Callable[[Columns], str]] = [
        lambda of: f"{of.run:34} {of.state:10} {of.attempt:11} {of.step:17} {of.verdict:16} {of.folder}",
        lambda of: f"{of.run:34} {of.state:10} {of.attempt:11} {of.step:17} {of.verdict}",
        lambda of: f"{of.run:29} {of.state:10} {of.step:17} {of.verdict}",
        lambda of: f"{_short(of.run):16} {of.state:10} {of.step:17} {of.verdict}",
        lambda of: f"{_short(of.run):16} {of.state:10} {of.step.partition('/')[0]:9} {of.verdict}",
    ]
    for form in forms:
        lines = [form(run) for run in runs]
        if width is None or all(len(line) <= width for line in lines):
            return lines
    return [line[:width] for line in lines]


def _short(run_id: str) -> str:
    """An id without its date: ``brave-otter``; `stoker attach` takes it as well."""
    parts = run_id.split("-", 2)
    return parts[2] if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() else run_id
