"""Replay a recorded run: pause, scrub, jump from event to event."""

from __future__ import annotations

import argparse
import os

from supervisor.cli.common import (
    add_appearance_flags,
    add_recorded_run,
    appearance_from,
    complain,
    has_terminal,
    named_run,
    say,
)
from supervisor.views.model.replay import NothingRecorded, record_of
from supervisor.views.wording.translate import words_in

CLEAR_LINE = "\r\x1b[K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_run(parser)
    add_appearance_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Open the app on the recording."""
    appearance = appearance_from(vars(args), os.environ)
    paths = named_run(args.run, args.runs_dir)
    if not has_terminal():
        return complain(
            "replay", "needs a terminal: `stoker diagnose` and `stoker export --chart` print instead"
        )

    tr = words_in(appearance.spoken)
    # Loading the app and reading the entire run takes a second or more.
    say(tr(f"reading the recording of {paths.run_id}…"), end="", flush=True)
    from supervisor.views.tui.app import replay_app, run_app

    try:
        recording = record_of(paths)
    except NothingRecorded as error:
        say()
        return complain("replay", error)
    print(CLEAR_LINE, end="", flush=True)
    run_app(replay_app(recording, appearance=appearance))
    return 0
