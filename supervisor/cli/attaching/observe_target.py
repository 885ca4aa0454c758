"""``stoker attach LOG|FOLDER|PID|-``: what to observe, and with which view."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.attaching.first_verdict import tell_first_verdict
from supervisor.cli.attaching.targets import resolve
from supervisor.cli.attaching.watcher_process import NICENESS, Watcher
from supervisor.cli.common import complain, metric_rules_of_user, wait_while_read
from supervisor.cli.diagnosing.job_logs import BadInputError, is_of_one_process, without_rank
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.keeper.clock import SystemClock
from supervisor.keeper.observer.start_observed import ObservedRun, backlog_bytes
from supervisor.keeper.observer.target import Target
from supervisor.run.access.lock import keeper_is_alive
from supervisor.run.index import claim, register, state_home
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.sources.processes import identify, read_cmdline

if TYPE_CHECKING:
    from supervisor.keeper.observer.observer import Observer
    from supervisor.run.records import Verdict
    from supervisor.views.appearance import Appearance

LEFT_BEHIND_S = 3600.0
PIPE_BYTES = 1 << 18
JOIN_S = 0.2


def observe(target: str, args: argparse.Namespace, appearance: Appearance) -> int:
    """Watch `target` in an observed run directory; it is removed afterwards unless --keep."""
    place = state_home(os.environ) / ("kept" if args.keep else "observed")
    _clear_away(state_home(os.environ) / "observed")
    try:
        run = claim(place)
    except OSError as error:
        return complain("attach", f"{place}: {error.strerror}: set XDG_STATE_HOME to a folder of yours", 3)
    try:
        what, _ = resolve(target, run, check_writers=False, report_unseen=True)
        _refuse_several_jobs(target, what)
    except BadInputError as error:
        shutil.rmtree(run.root, ignore_errors=True)
        return complain("attach", str(error))
    try:
        with _keyboard_as_stdin(what.pipe is not None) as has_screen:
            if args.no_ui or not has_screen:
                return _without_screen(run, target, args)
            return _with_screen(run, target, what, args, appearance)
    finally:
        if args.keep:
            register(run, what.name, os.environ)
            print(f"kept: {run.root}", file=sys.stderr)
        else:
            shutil.rmtree(run.root, ignore_errors=True)
        if what.pipe is not None:
            _let_it_write(0)


def _refuse_several_jobs(target: str, what: Target) -> None:
    """Logs that do not belong together make no run.

    Raises:
        BadInputError: the folder holds logs of several jobs; one line with how to attach to one.
    """
    if len(what.logs) > 1 and os.path.isdir(what.source):
        from supervisor.cli.attaching.folder_jobs import several_jobs

        if several := several_jobs(os.path.expanduser(target), what.logs):
            raise BadInputError(several)


def _let_it_write(pipe: int) -> None:
    """Read on what nobody looks at until its writer ends: a line into a closed pipe would end it (SIGPIPE)."""
    reported = False
    with contextlib.suppress(KeyboardInterrupt, OSError):
        while True:
            if not reported and not select.select([pipe], [], [], 0.0)[0]:
                reported = True
                print(
                    "stoker attach: left; the pipe is read on, so that its writer is not ended (Ctrl-C: close it)",
                    file=sys.stderr,
                )
            select.select([pipe], [], [])
            if not os.read(pipe, PIPE_BYTES):
                return


def _with_screen(
    run: RunPaths, target: str, what: Target, args: argparse.Namespace, appearance: Appearance
) -> int:
    """The screen here, the watching in a process of its own: reading gigabytes there never delays a key here.

    The first facts are written here, before that process has loaded anything: the screen opens at once.
    """
    try:
        observed = ObservedRun.fresh(run, what, host=socket.gethostname(), clock=SystemClock())
    except OSError as error:
        return complain("attach", f"{run.root}: {error.strerror}: set XDG_STATE_HOME to a folder of yours", 3)
    with Watcher(run, target, observed, interval_s=args.interval, pipe=what.pipe, keep=args.keep) as watcher:
        if backlog_bytes(what):
            watcher.go()  # the verdict on a long log takes as long as the screen: neither waits for the other
        from supervisor.cli.open_app import kept_file
        from supervisor.views.tui.terminal import run_tui

        run_tui(
            run,
            read_only=args.read_only,
            appearance=appearance,
            keep=kept_file(os.environ),
            painted=watcher.go,
        )
    print(_supervise_hint(target))
    return 0


def _without_screen(run: RunPaths, target: str, args: argparse.Namespace) -> int:
    observer, _ = observer_of(run, target, interval_s=args.interval)
    try:
        return _follow(run, observer, as_json=args.json)
    finally:
        observer.leave()


def observer_of(
    run: RunPaths,
    target: str,
    *,
    interval_s: float,
    pipe: int | None = None,
    observed: ObservedRun | None = None,
) -> tuple[Observer, Target]:
    """What watches `target`, with what judges it.

    Args:
        run: the claimed run directory.
        target: as typed.
        interval_s: seconds between sensor readings.
        pipe: the descriptor to read for ``-``; None: stdin.
        observed: the run directory, where it is begun already.

    Raises:
        BadInputError: nothing to watch; one line.
    """
    what, read = resolve(target, run, pipe=pipe)
    if observed is not None:
        tell_first_verdict(observed, what, lambda verdict: _of_known_rank(verdict, what))
        os.nice(NICENESS)

    from supervisor.diagnosis.verdict import diagnose
    from supervisor.keeper.observer.observer import Observer
    from supervisor.sources.signature_files import Engine

    def judge(engine: Engine) -> Verdict:
        try:
            return _of_known_rank(
                diagnose(observer.with_end(read()), engine.signatures, engine.matcher), what
            )
        except (BadInputError, OSError):  # the log was removed while it was watched: nothing is left to judge
            return diagnose(JobEvidence(logs=()), engine.signatures, engine.matcher)

    host = socket.gethostname()
    rules = metric_rules_of_user(os.environ)
    observer = Observer(
        run, what, host=host, judge=judge, interval_s=interval_s, observed=observed, rules=rules
    )
    return observer, what


def _of_known_rank(verdict: Verdict, what: Target) -> Verdict:
    """The verdict without "rank 0", which stands for a job of one process, where the log names no rank at all."""
    if verdict.rank != 0 or len(what.logs) != 1 or what.processes:
        return verdict
    log = what.logs[0]
    if log.packed or not is_of_one_process(log.path, log.origin):
        return verdict
    return replace(verdict, rank=None, title=without_rank(verdict.title))


def _clear_away(observed: Path) -> None:
    """Remove what observers left that were killed: nobody holds its lock, and it is no newborn."""
    with contextlib.suppress(OSError):
        for path in observed.iterdir():
            old = path.stat().st_mtime < time.time() - LEFT_BEHIND_S
            if old and not keeper_is_alive(RunPaths(path).node().lock):
                shutil.rmtree(path, ignore_errors=True)


def _follow(run: RunPaths, observer: Observer, *, as_json: bool) -> int:
    """Watch, and print facts until the target ends and all of it is read, however long that takes.

    Returns 0, 1 for a failure, 6 where it was left before all was read: how it ended is then not known.
    """
    from supervisor.policy import EXIT_LOST
    from supervisor.views.console import ConsoleSettings, ConsoleView, wants_colour

    colour = wants_colour(sys.stdout, os.environ)
    settings = ConsoleSettings(stdout=sys.stdout, log_file=None, colour=colour, as_json=as_json)
    console = ConsoleView(run, settings)
    try:  # from its first look on there is something to leave
        console.start()
        observer.end_when_read()
        observer.start()
        while not observer.join(JOIN_S):
            wait_while_read(0.0)
    except BrokenPipeError:
        observer.leave(hurried=True)
        console.finish()
        raise
    except KeyboardInterrupt:
        try:
            observer.leave()
        except KeyboardInterrupt:
            observer.leave(hurried=True)
    console.finish()
    condition = observer.state.condition
    return condition.exit_code if isinstance(condition, Finished) else EXIT_LOST


@contextmanager
def _keyboard_as_stdin(piped: bool) -> Iterator[bool]:
    """Whether there is a screen. With a pipe on stdin the keyboard is the controlling terminal."""
    if not sys.stdout.isatty():
        yield False
        return
    if not piped:
        yield sys.stdin.isatty()
        return
    try:
        tty = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        yield False
        return
    saved = os.dup(0)
    os.dup2(tty, 0)
    os.close(tty)
    try:
        yield True
    finally:
        os.dup2(saved, 0)
        os.close(saved)


def _supervise_hint(target: str) -> str:
    if target.isdigit():
        process = identify(int(target))
        command = read_cmdline(process) if process is not None else []
        if command:
            return f"to have it supervised next time: stoker run -- {' '.join(command)}"
    return "to have a job supervised: stoker run [torchrun's flags] SCRIPT"
