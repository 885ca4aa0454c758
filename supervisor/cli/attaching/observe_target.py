"""``stoker attach LOG|FOLDER|PID|-``: what to observe, and with which view."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.attaching.targets import resolve
from supervisor.cli.attaching.watcher_process import NICENESS, Watcher
from supervisor.cli.common import complain, metric_rules_of_user, say, wait_while_read
from supervisor.cli.job_logs import BadInputError, is_of_one_process, without_rank
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.keeper.base.keeper_clock import SystemClock
from supervisor.keeper.observer.start_observed import ATTEMPT, ObservedRun, backlog_bytes
from supervisor.keeper.observer.target import ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run.failures import FailureClass
from supervisor.run.index import claim, register, state_home
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.records import Verdict
from supervisor.run.regular import open_regular
from supervisor.run.state import Finished
from supervisor.sources.processes import identify, read_cmdline
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.decode import clean, shell_word

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
        make_private(place)
        run = claim(place)
    except OSError as error:
        return complain("attach", f"{place}: {error.strerror}: set XDG_STATE_HOME to a folder of yours")
    try:
        what, _ = resolve(target, run, check_writers=False, report_unseen=True)
        _refuse_several_jobs(target, what)
    except BadInputError as error:
        shutil.rmtree(run.root, ignore_errors=True)
        return complain("attach", error)
    try:
        with _keyboard_as_stdin(what.pipe is not None) as has_screen:
            if args.no_ui or not has_screen:
                return _without_screen(run, target, args)
            return _with_screen(run, target, what, args, appearance)
    finally:
        if args.keep:
            register(run, what.name, os.environ)
            say(f"kept: {run.root}", file=sys.stderr)
        else:
            shutil.rmtree(run.root, ignore_errors=True)
        if what.pipe is not None:
            _let_it_write(0)


def _refuse_several_jobs(target: str, what: Target) -> None:
    """Logs that do not belong together make no run.

    Raises:
        BadInputError: the folder holds logs of several jobs; one line with how to attach to one.
    """
    is_folder = len(what.logs) > 1 and os.path.isdir(what.source)
    if is_folder and (several := several_jobs(os.path.expanduser(target), what.logs)):
        raise BadInputError(several)


def _let_it_write(pipe: int) -> None:
    """Read on what nobody looks at until its writer ends: a line into a closed pipe would end it (SIGPIPE)."""
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


def _with_screen(
    run: RunPaths, target: str, what: Target, args: argparse.Namespace, appearance: Appearance
) -> int:
    """The screen here, the watching in a process of its own: reading gigabytes there never delays a key here.

    The first facts are written here, before that process has loaded anything: the screen opens at once.
    """
    observed = ObservedRun.fresh(run, what, host=socket.gethostname(), clock=SystemClock())
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
    say(_supervise_hint(target))
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
    from supervisor.views.headless.console import ConsoleSettings, ConsoleView, wants_colour

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


# -- whether a folder's logs belong to one job, and which of them are a training's -----------------
# Names decide first: ranks, nodes, tasks, streams, attempts and words such as ``train`` or ``console`` tell no jobs apart.
# Of names that do, two must be logs of trainings: a run's own folder may also hold a list of packages or a profile.

# Bytes of a log's beginning and end that are read to see whether it is a training's, and of them so many lines.
LOOKED_AT_BYTES = 1 << 16
LOOKED_AT_LINES = 200
# Ranks and nodes of one job start within this time of one another.
TOGETHER_S = 600.0
# So many names stand in the line about a folder.
NAMED = 3
_WORD = re.compile(r"[a-z]+|\d+")
_ENDING = re.compile(r"(?:\.(?:log|txt|out|err|stdout|stderr|jsonl?|gz|\d{1,3}))+$")
_SCHEDULERS = re.compile(r"(?:^|/)(?:slurm|pbs|lsf)\b|\.[oe]\d+$")
# Words for a part of a job. What stands before a number says that it counts parts, not jobs.
_PARTS = re.compile(
    r"(?:rank|node|worker|gpu)s?|local|global|host|pod|proc|process|task|machine|replica|attempt"
)
_ROLES = re.compile(
    rf"{_PARTS.pattern}|logs?|outputs?|out|errors?|err|stdout|stderr|console|nohup|all|concat|combined"
    r"|train(?:ing|er)?|pretrain|finetune|eval|evaluate|val|valid|validation|test|metrics|debug|info|warnings"
    r"|launcher|agent|torchrun|main|slurm"
)


def several_jobs(folder: str, logs: Sequence[ObservedLog]) -> str:
    """One line on a folder whose logs are of several jobs, with how to attach to one; empty: they may be of one."""
    names = {log.path: os.path.relpath(log.path, os.path.realpath(folder)) for log in logs}
    groups: dict[tuple[str, ...], list[ObservedLog]] = {}
    for log in logs:
        groups.setdefault(_job_of(names[log.path].lower(), log), []).append(log)
    groups.pop((), None)
    if len(groups) < 2:
        return ""
    trainings: list[tuple[str, ...]] = []
    for job, mine in groups.items():
        if not any(map(_is_training, mine)):
            continue
        if any(_are_apart((job, mine), (other, groups[other])) for other in trainings):
            break
        trainings.append(job)
    else:
        return ""
    paths = sorted((log.path for mine in groups.values() for log in mine), key=lambda path: names[path])
    newest = max(paths, key=lambda path: os.stat(path).st_mtime if os.path.exists(path) else 0.0)
    rest = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    listed = ", ".join(names[path] for path in paths[:NAMED])
    one = shell_word(os.path.normpath(os.path.join(folder, names[newest])))
    return f"{folder}: logs of several jobs ({listed}{rest}): attach to one, such as the newest: stoker attach {one}"


def _job_of(name: str, log: ObservedLog) -> tuple[str, ...]:
    """What of a log's name tells its job from others; empty: nothing."""
    origin = log.origin
    if origin.local_rank is not None:
        return ()  # torchrun's own tree
    if origin.node is not None:
        name = name.replace(origin.node.lower(), " ")
    words = _WORD.findall(_ENDING.sub("", name))
    has_place = _has_place(log)
    return tuple(
        word
        for before, word in zip(["", *words], words, strict=False)
        if not _ROLES.fullmatch(word) and not (word.isdigit() and (has_place or _PARTS.fullmatch(before)))
    )


def _has_place(log: ObservedLog) -> bool:
    return any(number is not None for number in (log.origin.rank, log.origin.node, log.origin.task))


def _are_apart(
    one: tuple[tuple[str, ...], Sequence[ObservedLog]], other: tuple[tuple[str, ...], Sequence[ObservedLog]]
) -> bool:
    """Whether two groups of logs are of two jobs."""
    (job, logs), (other_job, others) = one, other
    if all(map(_has_place, [*logs, *others])):  # hosts' names before their ranks: no rank comes twice
        return bool({log.origin for log in logs} & {log.origin for log in others})
    if [w for w in job if not w.isdigit()] != [w for w in other_job if not w.isdigit()]:
        return True
    if any(_SCHEDULERS.search(log.path.lower()) for log in logs):
        return True
    from supervisor.keeper.observer.observer import span_of_logs

    spans = [span_of_logs((log.path, log.path) for log in each) for each in (logs, others)]
    starts = [span.began_t for span in spans if span is not None]
    return len(starts) < 2 or any(abs(a - b) > TOGETHER_S for a, b in combinations(starts, 2))


def _is_training(log: ObservedLog) -> bool:
    """Whether a log's beginning or end reports progress, or ends in a traceback; a packed one is taken to."""
    from supervisor.sources.metrics import MetricReader

    if log.packed:
        return True
    try:
        with open_regular(log.path) as file:
            size = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), LOOKED_AT_BYTES, 0)
            tail = os.pread(file.fileno(), LOOKED_AT_BYTES, max(size - LOOKED_AT_BYTES, 0))
    except OSError:
        return False
    if b"Traceback (most recent call last)" in tail:
        return True
    reader = MetricReader()
    lines = [*head.splitlines()[:LOOKED_AT_LINES], *tail.splitlines()[-LOOKED_AT_LINES:]]
    return any(reader.feed(clean(line)) is not None for line in lines)


# -- the verdict on a long log's end, before what watches it is loaded -----------------------------
# Only a clear failure of a log that nobody writes is told so, as provisional. The observer reads the whole log and either confirms
# it or takes it back.

TAIL_BYTES = 1 << 20
# The signature's own line stands at the end: less sure is only what the whole log may show otherwise.
CLEAR = 0.9
QUIET_S = 60.0
_NO_FAILURE = frozenset((FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED))


def tell_first_verdict(observed: ObservedRun, what: Target, shown: Callable[[Verdict], Verdict]) -> None:
    """Journal the failure that the end of a long log shows, if it does clearly. `shown`: as the observer words it."""
    if not backlog_bytes(what) or not what.ended or any(log.packed for log in what.logs):
        return
    try:
        if time.time() - max(os.stat(log.path).st_mtime for log in what.logs) < QUIET_S:
            return
        engine = load_engine(default_cache_dir())
        evidence = JobEvidence(tuple(LogSource(log.name, _tail(log), log.origin) for log in what.logs))
        verdict = diagnose(evidence, engine.signatures, engine.matcher)
    except OSError:
        return  # the observer says what is wrong with it
    if verdict.failure in _NO_FAILURE or verdict.confidence < CLEAR or verdict.cause is None:
        return
    # How many lines stand above is not counted yet.
    verdict = shown(verdict)
    assert verdict.cause is not None
    verdict = replace(verdict, cause=replace(verdict.cause, line=None), consequences=())
    now = time.time()
    observed.emit(ev.AttemptEnded(t=now, attempt=ATTEMPT, exit_code=None))
    observed.emit(ev.LogsDated(t=now, attempt=ATTEMPT, began_t=None, over=True))
    observed.emit(ev.Diagnosed(t=now, attempt=ATTEMPT, verdict=verdict, provisional=True))


def _tail(log: ObservedLog) -> Iterator[bytes]:
    with open_regular(log.path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - TAIL_BYTES, 0))
        if size > TAIL_BYTES:
            file.readline()  # of it only the end
        yield file.read(TAIL_BYTES)
