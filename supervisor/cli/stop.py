"""Stop a run: gracefully (the trainer may checkpoint), or --now."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path

from supervisor.cli.common import acted_on, add_recorded_run, complain, refuse, say
from supervisor.job.errors import JobError
from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.index import LEAST_PART, known_runs, named_runs, runs_dir, those_under
from supervisor.run.journal import WAITS_FOR_SPACE, StateReader, facts_in, read_state
from supervisor.run.ownership import NotRequested, ask, has_keeper, holder_here, place_of
from supervisor.run.paths import RunPaths, is_run_directory
from supervisor.run.state import Finished, RunState
from supervisor.sources.processes import ProcessId, send_signal
from supervisor.views.model.run_list import rows_of

MAX_LISTED = 10
SILENT_AFTER_S = 10.0
"""A keeper answers within 0.1 s. If it stays silent for this long, it may be stopped or hung."""
KILL_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_run(parser, "the one live run in this folder of runs")
    parser.add_argument("--now", action="store_true", help="send SIGKILL at once; unsaved progress is lost")
    parser.add_argument(
        "--timeout", type=float, default=90.0, metavar="S", help="seconds to wait for the end (default 90)"
    )
    parser.add_argument(
        "--without-keeper",
        action="store_true",
        help="with --now: if the supervisor process does not respond, end the run's processes without it",
    )


def run(args: argparse.Namespace) -> int:
    """Send the request and wait for the run to stop.

    Exit 0 once it has stopped, 1 if it did not stop in time, 2 if no run or several runs match, 3 if there is
    no keeper.
    """
    place = runs_dir(args.runs_dir, os.environ)
    meant = _meant(args.run, place, elsewhere=args.runs_dir is None)
    if len(meant) > 1:
        return _which(args.run, place, meant)
    paths = meant[0] if meant else acted_on("stop", args.run, args.runs_dir)
    if refusal := place_of(paths).refusal:
        return refuse("stop", paths.run_id, [refusal])
    reader = StateReader(paths.node().journal)
    while reader.refresh():
        continue
    if isinstance(reader.state.condition, Finished):
        say(f"{paths.root} has ended already: {reader.state.condition.outcome}")
        return 0
    adopt = _what_to_do(paths, reader.state)
    request_id, refusal = "", adopt
    try:
        if has_keeper(paths):
            request_id = ask(paths, RequestKind.STOP_NOW if args.now else RequestKind.STOP)
    except NotRequested as why:
        refusal = str(why)
    except OSError as error:
        holder = holder_here(paths.node().lock) if error.errno in WAITS_FOR_SPACE else None
        request_id = "SIGTERM"  # the request could not be written
        if holder is None or not send_signal(ProcessId(holder.pid, holder.start_time), signal.SIGTERM):
            hint = ": not your run?" if isinstance(error, PermissionError) else ""
            return complain("stop", f"{paths.control}: {error.strerror}{hint}", 1)
    began = time.monotonic()
    looked = False
    while time.monotonic() < began + args.timeout:
        keeper_lives = has_keeper(paths)  # check before reading the journal: its last line is then written
        reader.refresh()
        if isinstance(reader.state.condition, Finished):
            say(f"{paths.root} ended: {reader.state.condition.outcome}: {reader.state.condition.reason}")
            for text in _still_running(paths, reader.state):
                say(text, file=sys.stderr)
            return 0
        if not request_id:  # and it did not end in the meantime
            return refuse("stop", f"{paths.run_id} has no keeper", [refusal])
        answer = reader.state.answered.get(request_id)
        if answer not in {None, "done"}:
            return complain("stop", f"refused: {answer}", 1)
        if not keeper_lives:
            return complain("stop", f"{paths.run_id}: its keeper ended before it had stopped it: {adopt}", 1)
        if answer is None and not looked and time.monotonic() > began + SILENT_AFTER_S:
            looked = True
            holder = holder_here(paths.node().lock)
            whose, what = (f" (pid {holder.pid})", f": if a signal stopped it, `kill -CONT {holder.pid}` lets it continue") if holder else ("", "")  # fmt: skip
            silent = (
                f"{paths.run_id}: its supervisor process{whose} has not answered for {SILENT_AFTER_S:.0f} s"
            )
            if args.now and args.without_keeper:
                return _stop_without_keeper(paths, silent)
            say(f"{silent}{what}", file=sys.stderr)
        time.sleep(0.1)
    further = " --now --without-keeper" if looked or args.now else " --now"
    if args.now and args.without_keeper:
        further += f" --timeout {args.timeout + 3 * SILENT_AFTER_S:.0f}"
    advice = f"`stoker stop{further} {paths.run_id}`"
    return complain("stop", f"{paths.run_id} has not ended after {args.timeout:.0f} s: {advice}", 1)


def _stop_without_keeper(run: RunPaths, silent: str) -> int:
    """Find and kill the processes of a run whose keeper is not responding. If it wakes up, the pending request ends the run."""
    from supervisor.keeper.process.child import alive_of, end_all
    from supervisor.keeper.process.members import label_of

    state, run_dir = read_state(run.node().journal), os.path.realpath(run.root)
    paths = run.node().attempt(state.attempt.number if state.attempt is not None else 1)
    found = alive_of(run_dir, paths)
    say(silent, *(f"  {label_of(process)}" for process in found), file=sys.stderr)
    if not found:
        return complain("stop", "no process of the run lives besides it", 1)
    if left := ", ".join(map(label_of, end_all(run_dir, paths, KILL_S))):
        return complain("stop", f"after {KILL_S:.0f} s there live still: {left}", 1)
    say(f"{run.run_id}: its processes are ended; its supervisor process ends the run when it continues")
    return 0


def _still_running(run: RunPaths, state: RunState) -> list[str]:
    """Describe processes left from the latest attempt: those that would not exit or may not belong to the run."""
    from supervisor.views.headless.console import event_lines

    number = state.attempt.number if state.attempt is not None else 0
    left = [
        event
        for event in facts_in(run.node().journal)
        if isinstance(event, ev.StopStepTaken | ev.ProcessesLeft) and event.attempt == number
    ]
    return [text for event in left for _, text in event_lines(event)]


def _what_to_do(run: RunPaths, state: RunState) -> str:
    """Tell the user how to stop a run that has no keeper."""
    if state.host != socket.gethostname():
        return f"none that is seen from here: it ran on {state.host}: stop it there"
    return f"`stoker attach --adopt {run.run_id}` takes over what lives of it, then stop it"


def _meant(text: str | None, place: Path, *, elsewhere: bool) -> list[RunPaths]:
    """Return the live runs that match `text`, or all live runs in `place`. If none matches, see `find_run`.

    Never guess between two runs: stopping a run loses the work since its last checkpoint.
    """
    known = known_runs(place, os.environ, elsewhere=elsewhere)
    here = those_under(known, place)
    if text is None:
        asked = here
    elif is_run_directory(Path(os.path.expanduser(text))) or any(run.run_id == text for run in known):
        return []
    elif asked := named_runs(text, known, os.environ):
        asked += [run for run in here if len(text) >= LEAST_PART and text in run.run_id]
        asked = [run for run in here if run in asked] or asked  # a name prefers runs in this folder
    live = [run for run in asked if has_keeper(run)]
    return [run for run in live if not read_state(run.node().journal).is_over] if len(live) > 1 else live


def _which(text: str | None, place: Path, meant: list[RunPaths]) -> int:
    from supervisor.cli.runs import texts_of

    where = f"under {place}" if text is None else f"are called {text!r}"
    lines = [f"{len(meant)} live runs {where}: say which, by its id"]
    listed = map(texts_of, rows_of(meant[:MAX_LISTED], os.environ))
    lines += [f"  {of['run']:34} {of['state']:10} {of['step']:17} {of['name']}".rstrip() for of in listed]
    if len(meant) > MAX_LISTED:
        lines.append(f"  and {len(meant) - MAX_LISTED} more: `stoker runs`")
    return complain("stop", JobError(*lines))
