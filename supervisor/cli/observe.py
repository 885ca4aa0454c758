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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.common import complain
from supervisor.cli.job_files import BadInputError, file_chunks, read_jobs, tasks_of
from supervisor.cli.watcher import Watcher
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.keeper.beginning import Beginning
from supervisor.keeper.clock import SystemClock
from supervisor.keeper.target import PIPE_NAME, ObservedLog, Target
from supervisor.run.index import claim, register, state_home
from supervisor.run.lock import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.sources.processes import ProcessId, descendants, identify, read_cmdline, read_environ
from supervisor.text.decode import HEAD_BYTES, clean, is_binary, is_packed
from supervisor.text.prefixes import NOWHERE, Origin, origin_of_path, split_prefix

if TYPE_CHECKING:
    from supervisor.keeper.observe import Observer
    from supervisor.run.records import Verdict
    from supervisor.views.glimpse import Glimpse
    from supervisor.views.taste import Taste

LEFT_BEHIND_S = 3600.0
# So much of a log's end tells whether its lines name ranks.
NAMED_BYTES = 1 << 18
PIPE_BYTES = 1 << 18


def observe(target: str, args: argparse.Namespace, taste: Taste, glimpse: Glimpse) -> int:
    """Watch `target` in an observed run directory; it is removed afterwards unless --keep.

    `glimpse`: what may show the log until the app does.
    """
    place = state_home(os.environ) / ("kept" if args.keep else "observed")
    _clear_away(state_home(os.environ) / "observed")
    try:
        run = claim(place)
    except OSError as error:
        glimpse.leave()
        return complain("attach", f"{place}: {error.strerror}: set XDG_STATE_HOME to a folder of yours", 3)
    try:
        what, _ = resolve(target, run, looks=False, speaks=True)
    except BadInputError as error:
        shutil.rmtree(run.root, ignore_errors=True)
        glimpse.leave()
        return complain("attach", str(error))
    try:
        with _keyboard_as_stdin(what.pipe is not None) as has_screen:
            if args.no_ui or not has_screen:
                return _without_screen(run, target, args)
            return _with_screen(run, target, what, args, taste, glimpse)
    finally:
        glimpse.leave()
        if args.keep:
            register(run, what.name, os.environ)
            print(f"kept: {run.root}", file=sys.stderr)
        else:
            shutil.rmtree(run.root, ignore_errors=True)
        if what.pipe is not None:
            _let_it_write(0)


def _let_it_write(pipe: int) -> None:
    """Read on what nobody looks at until its writer ends: a line into a closed pipe would end it (SIGPIPE)."""
    said = False
    with contextlib.suppress(KeyboardInterrupt, OSError):
        while True:
            if not said and not select.select([pipe], [], [], 0.0)[0]:
                said = True
                print(
                    "stoker attach: left; the pipe is read on, so that its writer is not ended (Ctrl-C: close it)",
                    file=sys.stderr,
                )
            select.select([pipe], [], [])
            if not os.read(pipe, PIPE_BYTES):
                return


def _with_screen(
    run: RunPaths, target: str, what: Target, args: argparse.Namespace, taste: Taste, glimpse: Glimpse
) -> int:
    """The screen here, the watching in a process of its own: reading gigabytes there never delays a key here.

    The first facts are written here, before that process has loaded anything: the screen opens at once.
    """
    try:
        beginning = Beginning.fresh(run, what, host=socket.gethostname(), clock=SystemClock())
    except OSError as error:
        glimpse.leave()
        return complain("attach", f"{run.root}: {error.strerror}: set XDG_STATE_HOME to a folder of yours", 3)
    with Watcher(run, target, beginning, interval_s=args.interval, pipe=what.pipe, keep=args.keep) as watcher:
        from supervisor.cli.screen import kept_file, load_app

        run_tui = load_app()
        run_tui(
            run,
            read_only=args.read_only,
            taste=taste,
            keep=kept_file(os.environ),
            painted=watcher.go,
            begun=glimpse.hand_over(),
        )
    print(_supervise_hint(target))
    return 0


def _without_screen(run: RunPaths, target: str, args: argparse.Namespace) -> int:
    observer, what = observer_of(run, target, interval_s=args.interval)
    observer.start()
    try:
        return _follow(run, observer, what, as_json=args.json)
    finally:
        observer.leave()


def observer_of(
    run: RunPaths,
    target: str,
    *,
    interval_s: float,
    pipe: int | None = None,
    beginning: Beginning | None = None,
) -> tuple[Observer, Target]:
    """What watches `target`, with what judges it.

    Args:
        run: the claimed run directory.
        target: as typed.
        interval_s: seconds between sensor readings.
        pipe: the descriptor to read for ``-``; None: stdin.
        beginning: the run directory, where it is begun already.

    Raises:
        BadInputError: nothing to watch; one line.
    """
    what, read = resolve(target, run, pipe=pipe)

    from supervisor.diagnosis.verdict import diagnose
    from supervisor.keeper.observe import Observer
    from supervisor.sources.signature_files import Engine

    def judge(engine: Engine) -> Verdict:
        try:
            return _of_known_rank(diagnose(read(), engine.signatures, engine.matcher), what)
        except (BadInputError, OSError):  # the log was removed while it was watched: nothing is left to judge
            return diagnose(JobEvidence(logs=()), engine.signatures, engine.matcher)

    host = socket.gethostname()
    observer = Observer(run, what, host=host, judge=judge, interval_s=interval_s, beginning=beginning)
    return observer, what


def _of_known_rank(verdict: Verdict, what: Target) -> Verdict:
    """The verdict without "rank 0", which stands for a job of one process, where the log names no rank at all."""
    if verdict.rank != 0 or len(what.logs) != 1 or what.processes or what.logs[0].origin != NOWHERE:
        return verdict
    if what.logs[0].packed or _names_ranks(what.logs[0].path):
        return verdict
    return replace(verdict, rank=None, title=verdict.title.removesuffix(" on rank 0"))


def _names_ranks(path: str) -> bool:
    """Whether one of a log's last lines says which rank speaks."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - NAMED_BYTES, 0))
        lines = file.read(NAMED_BYTES).splitlines()
    said = (split_prefix(clean(line))[0] for line in lines)
    return any(origin.rank is not None or origin.local_rank is not None for origin in said)


def _clear_away(observed: Path) -> None:
    """Remove what observers left that were killed: nobody holds its lock, and it is no newborn."""
    with contextlib.suppress(OSError):
        for path in observed.iterdir():
            old = path.stat().st_mtime < time.time() - LEFT_BEHIND_S
            if old and not keeper_is_alive(RunPaths(path).node().lock):
                shutil.rmtree(path, ignore_errors=True)


def _follow(run: RunPaths, observer: Observer, what: Target, *, as_json: bool) -> int:
    """Print facts until the target ends (a file that nobody writes: once it is read); exit 0, or 1 for a failure."""
    from supervisor.views.console import ConsoleSettings, ConsoleView, wants_colour

    colour = wants_colour(sys.stdout, os.environ)
    settings = ConsoleSettings(stdout=sys.stdout, log_file=None, colour=colour, as_json=as_json)
    console = ConsoleView(run, settings)
    console.start()
    with contextlib.suppress(KeyboardInterrupt):
        if what.ended:
            observer.leave()
        else:
            while not observer.join(0.2):
                continue
    observer.leave()
    console.finish()
    condition = observer.state.condition
    return condition.exit_code if isinstance(condition, Finished) else 0


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


def resolve(
    target: str, run: RunPaths, *, looks: bool = True, speaks: bool = False, pipe: int | None = None
) -> tuple[Target, Callable[[], JobEvidence]]:
    """What `target` names and how to read it for a verdict.

    Args:
        target: as typed.
        run: the claimed run directory.
        looks: find out whether somebody still writes the logs.
        speaks: say on stderr what cannot be seen.
        pipe: the descriptor to read for ``-``; None: stdin.

    Raises:
        BadInputError: nothing to watch; one line.
    """
    if target == "-":
        return _pipe(run, pipe)
    path = Path(os.path.expanduser(target))
    if path.is_dir() or path.is_file() or not target.isdecimal():
        return _logs(path, looks=looks)
    return _process(int(target), speaks=speaks)


def _pipe(run: RunPaths, pipe: int | None) -> tuple[Target, Callable[[], JobEvidence]]:
    if pipe is None and sys.stdin.isatty():
        raise BadInputError(
            "-: stdin is the terminal: pipe a log into it, as in `train 2>&1 | stoker attach -`"
        )
    copy = run.node().attempt(1).root / PIPE_NAME

    def read() -> JobEvidence:
        return JobEvidence(logs=(LogSource(PIPE_NAME, file_chunks(str(copy))),))

    # A descriptor of its own: the screen takes the terminal as stdin.
    return Target("stdin", "a pipe", pipe=os.dup(0) if pipe is None else pipe), read


def _logs(path: Path, *, looks: bool) -> tuple[Target, Callable[[], JobEvidence]]:
    sources = read_jobs([str(path)])[0][2].logs  # what is wrong with it is said of the name that was typed

    def read() -> JobEvidence:
        # A verdict's path is looked up from wherever the run is looked at.
        return read_jobs([os.path.abspath(path)])[0][2]

    if path.is_file() and _is_binary(path):
        raise BadInputError(f"{path}: a binary file, not a log; give a log, a folder of logs, a pid, or -")
    logs = []
    tasks = tasks_of([source.path for source in sources])
    for source in sources:
        absolute = os.path.abspath(source.path if os.path.exists(source.path) else path / source.path)
        origin = source.origin if path.is_dir() else origin_of_path(path.name)
        if origin.rank is None and origin.local_rank is None:
            origin = origin._replace(
                task=source.origin.task if source.origin.task is not None else tasks.get(source.path)
            )
        logs.append(ObservedLog(absolute, source.path, origin, packed=_is_packed(absolute)))
    target_name = path.name or str(path)
    ended = looks and not _any_is_written(log.path for log in logs)
    return Target(target_name, os.path.abspath(path), tuple(logs), ended=ended), read


def _is_binary(path: Path) -> bool:
    """Whether a file's first bytes are no text of any kind. Zeros before the text are a hole that truncation left."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        if head and not head.strip(b"\0"):
            try:
                file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
            except OSError:
                return False
            head = file.read(HEAD_BYTES)
    return is_binary(head)


def _is_packed(path: str) -> bool:
    """Whether a log must be unpacked to be read."""
    try:
        with open(path, "rb") as file:
            return is_packed(file.read(HEAD_BYTES))
    except OSError:
        return False


def _process(pid: int, *, speaks: bool) -> tuple[Target, Callable[[], JobEvidence]]:
    root = identify(pid)
    if root is None:
        raise BadInputError(f"{pid}: no process with this pid; it has ended")
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        raise BadInputError(
            f"{pid}: another user's process: its output cannot be seen; attach as that user, or give its log"
        )
    ranks: dict[int, ProcessId] = {}
    for process in descendants(root):
        rank = read_environ(process).get("RANK", "")
        if rank.isdigit():
            ranks.setdefault(int(rank), process)
    watched = ranks or {0: root}
    logs: dict[str, ObservedLog] = {}
    for number, process in sorted({**watched, -1: root}.items()):
        for fd, stream in ((1, "stdout"), (2, "stderr")):
            path = _regular_file(process.pid, fd)
            if path is not None:
                origin = Origin(rank=number, stream=stream) if number >= 0 and ranks else Origin()
                logs.setdefault(path, ObservedLog(path, os.path.basename(path), origin))
    unseen = (
        "" if logs else "its output goes to a terminal or a pipe and cannot be seen: only processes are shown"
    )
    if unseen and speaks:
        print(f"stoker attach: {pid}: {unseen}", file=sys.stderr)
    name = _program(read_cmdline(root)) or str(pid)

    def read() -> JobEvidence:
        jobs = [read_jobs([path])[0][2].logs[0] for path in logs if os.path.exists(path)]
        return JobEvidence(logs=tuple(jobs))

    ranked = tuple(sorted(watched.items()))
    return Target(name, f"pid {pid}", tuple(logs.values()), processes=ranked, unseen=unseen), read


def _program(command: list[str]) -> str:
    """What a process runs: its script or module, else its program."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1]
    return os.path.basename(script or (command[0] if command else ""))


def _regular_file(pid: int, fd: int) -> str | None:
    try:
        path = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None
    return path if path.startswith("/") and os.path.isfile(path) else None


def _any_is_written(paths: Iterable[str]) -> bool:
    """Whether some process that we may look at has one of the files open for writing; /proc is walked once."""
    wanted = {os.path.realpath(path) for path in paths}  # as the kernel names them
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            for fd in os.listdir(f"/proc/{entry}/fd"):
                if os.readlink(f"/proc/{entry}/fd/{fd}") in wanted and _opened_for_writing(entry, fd):
                    return True
        except OSError:
            continue
    return False


def _opened_for_writing(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _supervise_hint(target: str) -> str:
    if target.isdigit():
        process = identify(int(target))
        command = read_cmdline(process) if process is not None else []
        if command:
            return f"to have it supervised next time: stoker run -- {' '.join(command)}"
    return "to have a job supervised: stoker run [torchrun's flags] SCRIPT"
