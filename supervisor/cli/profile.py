"""Request a trace of a live training job's next steps."""

from __future__ import annotations

import argparse
import time
from typing import Final

from supervisor.cli.common import acted_on, add_recorded_run, complain, refuse, say
from supervisor.run.events import RequestKind
from supervisor.run.journal import StateReader
from supervisor.run.ownership import NotRequested, ask, has_keeper

ANSWERED_S: Final = 10.0
"""Answer timeout. A keeper normally answers within 0.1 s."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_run(parser, "the newest in this folder of runs")


def run(args: argparse.Namespace) -> int:
    """Send the request and print where the traces go. Exit 1 if there is no answer, 2 for no such run, 3 if refused."""
    paths = acted_on("profile", args.run, args.runs_dir)
    if not has_keeper(paths):
        return refuse("profile", f"{paths.run_id} has no keeper", ["nothing of it is trained now"])
    try:
        request_id = ask(paths, RequestKind.PROFILE)
    except NotRequested as why:
        return refuse("profile", paths.run_id, [str(why)])
    except OSError as error:
        return complain("profile", f"{paths.control}: {error.strerror}", 1)
    reader, deadline = StateReader(paths.node().journal), time.monotonic() + ANSWERED_S
    while (answer := reader.state.answered.get(request_id)) is None:
        if time.monotonic() > deadline:
            return complain("profile", f"{paths.run_id}: no answer after {ANSWERED_S:.0f} s", 1)
        time.sleep(0.1)
        reader.refresh()
    if answer != "done":
        return refuse("profile", paths.run_id, [str(answer)])
    say(
        f"{paths.run_id}: asked; the traces come to {paths.artifacts}, a file a rank, where its script writes them"
    )
    return 0
