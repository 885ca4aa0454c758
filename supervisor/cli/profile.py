"""Ask a live training for a trace of its next steps, and wait for it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from supervisor.cli.common import acted_on, add_recorded_run, complain, refuse, say

SETTLED_S = 2.0
"""Ranks end a trace within so long of each other: after it no further one is waited for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_run(parser, "the newest in this folder of runs")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="how long to wait for a trace (default 120 s)",
    )


def run(args: argparse.Namespace) -> int:
    """Send the request, print the traces. Exit 0 once there is one, 1 where none came, 2 for no such run, 3 where it is refused."""
    from supervisor.run.events import RequestKind
    from supervisor.run.journal import StateReader
    from supervisor.run.ownership import NotRequested, ask, has_keeper

    paths = acted_on("profile", args.run, args.runs_dir)
    if not has_keeper(paths):
        return refuse("profile", f"{paths.run_id} has no keeper", ["nothing of it is trained now"])
    before = _traces(paths.artifacts)
    try:
        request_id = ask(paths, RequestKind.PROFILE)
    except NotRequested as why:
        return refuse("profile", paths.run_id, [str(why)])
    except OSError as error:
        return complain("profile", f"{paths.control}: {error.strerror}", 1)
    reader = StateReader(paths.node().journal)
    found: set[Path] = set()
    deadline = time.monotonic() + args.timeout
    while time.monotonic() < deadline:
        reader.refresh()
        answer = reader.state.answered.get(request_id)
        if answer not in {None, "done"}:
            return refuse("profile", paths.run_id, [str(answer)])
        more = _traces(paths.artifacts) - before - found
        for path in sorted(more):
            say(str(path), flush=True)
        if more:
            deadline = min(deadline, time.monotonic() + SETTLED_S)
        found |= more
        time.sleep(0.1)
    if found:
        return 0
    what = "the bundled trainer writes one, and scripts that look for the file of docs/telemetry.md"
    return complain("profile", f"{paths.run_id}: no trace after {args.timeout:g} s: {what}", 1)


def _traces(folder: Path) -> set[Path]:
    return set(folder.glob("trace-*.json"))
