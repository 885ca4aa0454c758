"""Watch the target of ``stoker attach LOG|FOLDER|PID|-`` via an observed run directory, in the TUI or line by line."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.attach_targets import resolve
from supervisor.cli.common import complain, console_on_stdout, metric_rules_of_user, say, wait_while_read
from supervisor.cli.job_logs import BadInputError
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.observed_run import ObservedRun, Target
from supervisor.run.index import claim, register, state_home
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.state import Finished
from supervisor.sources.processes import any_is_written

if TYPE_CHECKING:
    from supervisor.keeper.observer import Observer
    from supervisor.views.appearance import Appearance

LEFT_BEHIND_S = 3600.0
PIPE_BYTES = 1 << 18
JOIN_S = 0.2
READ_KEPT_S = 30.0
"""How long to keep reading a log after the TUI closes, so that a kept directory gets a final verdict."""


def observe(target: str, args: argparse.Namespace, appearance: Appearance) -> int:
    """Watch `target` through an observed run directory, which is removed afterwards unless --keep is given."""
    place = state_home(os.environ) / ("kept" if args.keep else "observed")
    _clear_away(state_home(os.environ) / "observed")
    try:
        make_private(place)
        run = claim(place)
    except OSError as error:
        return complain("attach", f"{place}: {error.strerror}: set XDG_STATE_HOME to a folder of yours")
    try:
        what, read = resolve(target, run)
    except BadInputError as error:
        shutil.rmtree(run.root, ignore_errors=True)
        return complain("attach", error)
    try:
        observed = ObservedRun(run, what, host=socket.gethostname(), clock=Clock())
        watching = Watching(what, read, observed, interval_s=args.interval)
        with _keyboard_as_stdin(what.pipe is not None) as has_screen:
            if args.no_ui or not has_screen:
                return _without_screen(run, watching, as_json=args.json)
            return _with_screen(run, watching, args, appearance)
    finally:
        if args.keep:
            register(run, what.name, os.environ)
            say(f"kept: {run.root}", file=sys.stderr)
        else:
            shutil.rmtree(run.root, ignore_errors=True)
        if what.pipe is not None:
            _let_it_write(0)


class Watching:
    """A target's observer. A background thread loads and starts it once the TUI has been painted."""

    def __init__(
        self,
        what: Target,
        read: Callable[[], JobEvidence],
        observed: ObservedRun,
        *,
        interval_s: float,
    ) -> None:
        self._what, self._read, self._observed = what, read, observed
        self._interval_s = interval_s
        self._observer: Observer | None = None
        self._thread = threading.Thread(target=self.begin, name="stoker-attach")

    def begin_beside(self) -> None:
        """Begin in a thread, so that importing the metric reader and the diagnosis does not delay keystrokes."""
        self._thread.start()

    def load(self) -> Observer:
        """Load the observer without starting it."""
        from supervisor.keeper.observer import Observer

        what = self._what
        if what.logs and not what.processes:
            what = replace(what, ended=not any_is_written(log.written for log in what.logs))
        return Observer(
            self._observed,
            what,
            read=self._read,
            interval_s=self._interval_s,
            rules=metric_rules_of_user(os.environ),
        )

    def begin(self) -> None:
        """Load the observer and start it."""
        self._observer = self.load()
        self._observer.start()

    def leave(self, *, keep: bool) -> None:
        """Stop watching after the TUI closes. If `keep` is true, write a final verdict even if watching has not started yet."""
        if self._thread.ident is not None:
            self._thread.join()
        elif keep:
            self.begin()
        if self._observer is not None:
            self._observer.leave(hurried=not keep, patience_s=READ_KEPT_S)
        else:
            self._observed.close()


def _let_it_write(pipe: int) -> None:
    """Drain a pipe until its writer finishes. Closing it would kill the writer with SIGPIPE."""
    reported = False
    with contextlib.suppress(KeyboardInterrupt, OSError):
        while True:
            if not reported and not select.select([pipe], [], [], 0.0)[0]:
                reported = True
                say(
                    "stoker attach: left; the pipe is read on, so that its writer is not ended (Ctrl-C: close it)",
                    file=sys.stderr,
                )
            select.select([pipe], [], [])
            if not os.read(pipe, PIPE_BYTES):
                return


def _with_screen(run: RunPaths, watching: Watching, args: argparse.Namespace, appearance: Appearance) -> int:
    """Open the TUI on the first events. The observer is loaded once the TUI has been painted."""
    from supervisor.views.tui.app import run_tui

    try:
        run_tui(run, read_only=args.read_only, appearance=appearance, painted=watching.begin_beside)
    finally:
        watching.leave(keep=args.keep)
    say("to have a job supervised: stoker run [torchrun's flags] SCRIPT, or stoker run -- COMMAND")
    return 0


def _without_screen(run: RunPaths, watching: Watching, *, as_json: bool) -> int:
    """Print events until the target finishes and all its output has been read, with no time limit.

    Returns 0, 1 for a failure, or 6 if interrupted before everything was read, since the outcome is then unknown.
    """
    from supervisor.policy import EXIT_LOST

    console = console_on_stdout(run, as_json=as_json)
    observer = watching.load()
    observer.end_when_read()
    try:  # after the console's first check there is something to clean up
        console.start()
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
    finally:
        observer.leave()
    console.finish()
    condition = observer.state.condition
    return condition.exit_code if isinstance(condition, Finished) else EXIT_LOST


def _clear_away(observed: Path) -> None:
    """Delete folders left behind by killed observers, i.e. those that are not recent and whose lock is not held."""
    with contextlib.suppress(OSError):
        for path in observed.iterdir():
            old = path.stat().st_mtime < time.time() - LEFT_BEHIND_S
            if old and not keeper_is_alive(RunPaths(path).node().lock):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _keyboard_as_stdin(piped: bool) -> Iterator[bool]:
    """Yield whether the TUI can be shown. If stdin is a pipe, read keys from the controlling terminal."""
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
