"""Watch a run, a log file, a folder of logs, a process, or a pipe. The target is not signaled or modified.

With --adopt: start a new keeper for the surviving processes of a run whose keeper died.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from supervisor.cli.common import (
    WITH_LOG,
    acted_on,
    add_appearance_flags,
    add_runs_dir,
    appearance_from,
    complain,
    console_on_stdout,
    has_terminal,
    named_run,
    refuse,
    say,
    wait_while_read,
    without_keeper,
)
from supervisor.job.errors import JobError
from supervisor.policy import EXIT_LOST
from supervisor.run.journal import StateReader
from supervisor.run.ownership import has_keeper, newer_notice, place_of
from supervisor.run.paths import RunPaths, is_run_directory
from supervisor.run.runfile import SAMPLE_INTERVAL_S
from supervisor.run.state import Finished
from supervisor.views.appearance import Appearance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="RUN|LOG|FOLDER|PID|-",
        help="a run (path, id, part of an id, name), a log file, a folder of logs, a pid, or - for a pipe (default: the newest live run)",
    )
    parser.add_argument("--read-only", action="store_true", help="disable all keys that act on the run")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="start a new keeper for the live processes of a run whose keeper died, without a screen (exit 3: refused)",
    )
    parser.add_argument("--no-ui", action="store_true", help="print log lines instead of opening the screen")
    parser.add_argument("--json", action="store_true", help="with --no-ui: JSON lines on stdout")
    parser.add_argument(
        "--keep", action="store_true", help="keep the run directory of an observed log, pid or pipe"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=SAMPLE_INTERVAL_S,
        metavar="S",
        help=f"seconds between sensor readings (default {SAMPLE_INTERVAL_S:g})",
    )
    add_runs_dir(parser)
    add_appearance_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Attach to the target."""
    if args.interval <= 0:
        return complain("attach", f"--interval {args.interval:g}: must be above 0")
    appearance = appearance_from(vars(args), os.environ)
    target = args.target
    foreign = bool(target and target.strip()) and _is_foreign(target)
    if args.adopt:
        if foreign and not target.isdecimal():
            return complain("attach", f"{target}: no run: `stoker runs` lists what --adopt may take over")
        meant = acted_on("adopt", target, args.runs_dir, live_first=False)
        if target is None:
            say(f"the newest run in {meant.root.parent}: {meant.run_id}", file=sys.stderr)
        return adopt_run(meant)
    if foreign:
        from supervisor.cli.observe_target import observe

        return observe(target, args, appearance)
    try:
        paths = named_run(target, args.runs_dir)
    except JobError as error:
        named = (target or "").strip()
        missing = "no process with this pid" if named.isdecimal() else "no such file"
        return complain("attach", f"{target}: {missing}; {error}" if named else error)
    return _attach_run(paths, args, appearance)


def _is_foreign(target: str) -> bool:
    """Check whether the target is a log, folder, pid or pipe rather than a run. Digits are a pid if such a process exists."""
    path = Path(os.path.expanduser(target))
    if path.is_dir():
        return not is_run_directory(path)
    is_process = target.isdecimal() and os.path.isdir(f"/proc/{target}")
    return target == "-" or is_process or os.path.lexists(path)


def _attach_run(paths: RunPaths, args: argparse.Namespace, appearance: Appearance) -> int:
    journal = StateReader(paths.node().journal, tail_first=True)
    journal.refresh()
    state = journal.state
    place = place_of(paths)
    if notice := place.refusal or newer_notice(place, state.newer_version):
        say(f"{paths.run_id}: {notice}", file=sys.stderr)
    elif (
        state.mode == "launched"
        and not state.is_over
        and state.journal_read is None  # else a later keeper may have run on another host
        and state.host != socket.gethostname()
        and not has_keeper(paths)
    ):
        where = state.host
        say(f"{paths.run_id}: its keeper is not seen from here: it ran on {where}", file=sys.stderr)
    if args.no_ui or not has_terminal():
        return follow(paths, as_json=args.json)
    from supervisor.cli.open_app import show

    return show(paths, read_only=args.read_only, env=os.environ, appearance=appearance, journal=journal)


def adopt_run(paths: RunPaths) -> int:
    """Adopt a run's live processes. Returns 3 if adoption is refused, 0 if the run already has a keeper."""
    from supervisor.keeper.base.job_secrets import asks_for, missing_secrets
    from supervisor.keeper.process.detach import KeeperDidNotStart
    from supervisor.keeper.process.takeover import NotAdopted, adopt, examine_adoption

    if has_keeper(paths):
        say(f"{paths.run_id}: nothing to adopt: it has a keeper")
        return 0
    offer, record = examine_adoption(paths)
    for warning in offer.warnings:
        complain("attach", warning)
    if record is not None and not offer.refusals and (missing := missing_secrets(record.job, os.environ)):
        complain("attach", f"it is watched, but not restarted: {asks_for(missing)}")
    try:
        adopt(paths, os.environ, entry=WITH_LOG)
    except NotAdopted as refused:
        return refuse("attach", f"{paths.run_id}: not adopted", refused.reasons)
    except (KeeperDidNotStart, OSError) as error:
        return complain("attach", f"{paths.run_id}: not adopted: no new keeper could start: {error}", 1)
    say(f"{paths.run_id}: adopted: {'; '.join(offer.actions)}", file=sys.stderr)
    return 0


def follow(paths: RunPaths, *, as_json: bool) -> int:
    """Print a run's events until it finishes.

    Returns the run's exit code, 0 if interrupted (the run continues), or 6 if its keeper died in the meantime.
    """
    from supervisor.views.headless.console import POLL_S

    console = console_on_stdout(paths, as_json=as_json)
    console.start()
    try:
        while not console.state.is_over and has_keeper(paths):
            wait_while_read(POLL_S)
    except BrokenPipeError:
        console.finish()
        raise
    except KeyboardInterrupt:
        console.finish()
        say(f"left; training continues. Come back with: stoker attach {paths.run_id}", file=sys.stderr)
        return 0
    console.finish(with_story=True)
    condition = console.state.condition
    if isinstance(condition, Finished):
        return condition.exit_code
    if not paths.root.is_dir():
        text = f"{paths.root}: the run directory was deleted or moved: how the run continues is not seen here"
        return complain("attach", text, EXIT_LOST)
    if console.state.mode != "observed" and place_of(paths).is_copy:
        return complain("attach", f"{paths.run_id}: how the run continues is not seen in a copy", EXIT_LOST)
    return complain("attach", without_keeper(paths, console.state), EXIT_LOST)
