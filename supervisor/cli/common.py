"""Code shared by several verbs: a parser with one-line errors, common flags, refusals, and the app's appearance."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from supervisor.job.errors import JobError
from supervisor.run.paths import xdg_home
from supervisor.run.regular import read_regular
from supervisor.text.decode import ascii_json, printable

if TYPE_CHECKING:
    from supervisor.job.arguments.run_arguments import ParsedRun
    from supervisor.job.config.setting_values import FileSettings
    from supervisor.job.spec import OwnSignature
    from supervisor.run.paths import RunPaths
    from supervisor.run.state import AttemptState, RunState
    from supervisor.views.appearance import Appearance
    from supervisor.views.headless.console import ConsoleView

EXIT_REFUSED = 3
MOST_BYTES = 1 << 20
MOST_CELLS = 60
"""Maximum column width. A longer cell only shifts the rest of its own row."""
WITH_LOG = f"{__package__}.detached"
"""The module to start for a detached keeper that also writes console output to a file."""
PROGRAM = __package__.rpartition(".")[0]
"""This program's name, as passed to ``python -m``."""


def has_terminal() -> bool:
    """Check whether stdin and stdout are a terminal, so that a user can read and answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def says_yes(question: str) -> bool:
    """Ask a yes/no question on the terminal. Anything other than y or yes means no."""
    terminal = sys.stdout if sys.stdout.isatty() else sys.stderr  # works under `2>err.log` too
    say(f"{question} [y/N] ", file=terminal, end="", flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """Add the ``--runs-dir`` flag."""
    parser.add_argument(
        "--runs-dir", metavar="DIR", help="folder of runs (default: $STOKER_RUNS_DIR, else ./runs)"
    )


READ = "a path, an id or a unique part of it, or a name"
ACTED_ON = "a path, an id, a name, or 3 or more characters of an id in this folder of runs"


def named_run(text: str | None, folder: str | None) -> RunPaths:
    """Return the run the user named. If `folder` (--runs-dir) is given, runs elsewhere are found only by path.

    Raises:
        RunNotFound: no run or more than one run matches. Every verb reports this in one line.
    """
    from supervisor.run.index import find_run, runs_dir

    return find_run(text, runs_dir(folder, os.environ), os.environ, elsewhere=folder is None)


def add_recorded_attempt(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a run to read and one of its attempts."""
    add_recorded_run(parser)
    parser.add_argument("--attempt", type=int, metavar="N", help="the attempt (default: the last)")


def named_attempt(args: argparse.Namespace) -> tuple[RunPaths, AttemptState]:
    """Return the run and the attempt that the user named (see `add_recorded_attempt`).

    Raises:
        RunNotFound: as in `named_run`; also if the run has no such attempt.
    """
    from supervisor.run.index import RunNotFound
    from supervisor.run.journal import read_state

    run = named_run(args.run, args.runs_dir)
    state = read_state(run.node().journal)
    attempt = state.attempt if args.attempt is None else state.find(args.attempt)
    if attempt is None:
        raise RunNotFound(f"{run.run_id} has no attempt {args.attempt or 1}")
    return run, attempt


def acted_on(verb: str, text: str | None, folder: str | None, *, live_first: bool = True) -> RunPaths:
    """Return the run to act on: the one the user named, or else one in the runs folder (`folder` is --runs-dir).

    Raises:
        RunNotFound: as in `named_run`; also if the only candidates are in other folders and must be named explicitly.
    """
    from supervisor.run.index import RunNotFound, find_run, known_runs, runs_dir

    place = runs_dir(folder, os.environ)
    if text is not None:
        return find_run(text, place, os.environ, elsewhere=folder is None, acting=True)
    here = known_runs(place, os.environ, elsewhere=False)
    if not here:
        far = named_run(None, folder).root
        raise RunNotFound(f"no run under {place}; the newest elsewhere is {far}: name it to {verb} it")
    return find_run(None, place, os.environ, elsewhere=False) if live_first else here[0]


def add_recorded_run(parser: argparse.ArgumentParser, acted_on: str = "") -> None:
    """Add ``--runs-dir`` and the argument that names the run to read or act on. `acted_on` describes the default run."""
    what = f"{ACTED_ON}; nothing: {acted_on}" if acted_on else f"{READ}; nothing: the newest run"
    parser.add_argument("run", nargs="?", metavar="RUN", help=what)
    add_runs_dir(parser)


def add_scope(parser: argparse.ArgumentParser) -> None:
    """Add the flags that limit which runs are listed, shared by `stoker` and `stoker runs`."""
    add_runs_dir(parser)
    parser.add_argument("--all", action="store_true", help="also list your runs in other folders")


def say(*lines: str, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print to stdout or to `file`. Each argument becomes exactly one line, whatever it contains."""
    print("\n".join(map(printable, lines)), file=file, end=end, flush=flush)


def say_table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> None:
    """Print rows as a table with columns as wide as their contents. Columns in `right` are right-aligned."""
    shown = [[*map(printable, row)] for row in rows]
    widths = [min(max(map(len, column)), MOST_CELLS) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(cells).rstrip(), flush=True)


def say_json(value: object) -> None:
    """Print an object as a single line of JSON."""
    print(ascii_json(json.dumps(value, separators=(",", ":"))))


def say_crash(*found: Any) -> None:
    """Print a redacted traceback to stderr. `found` is what `sys.excepthook` receives; by default, the current exception."""
    import traceback

    from supervisor.text.redact import redact_text

    lines = traceback.format_exception(*(found or sys.exc_info()))
    say(*redact_text("".join(lines)).splitlines(), file=sys.stderr)


def complain(verb: str, why: str | Exception, code: int | None = None) -> int:
    """Print a redacted line to stderr, or one per `JobError` line. Returns `code`, or else the error's own code, or else 2."""
    from supervisor.text.redact import redact_text

    first, *more = why.lines if isinstance(why, JobError) else (str(why),)
    with contextlib.suppress(OSError):  # the reader left or the disk is full: the exit code still counts
        for line in (f"{f'stoker {verb}'.rstrip()}: {first}", *more):
            say(re.sub(r"(\S{120})\S{180,}(\S{80})", r"\1…\2", redact_text(line)), file=sys.stderr)
    return code if code is not None else why.exit_code if isinstance(why, JobError) else 2


def wait_while_read(timeout_s: float | None, source: int | None = None) -> None:
    """Wait for `timeout_s`, or until the file descriptor `source` is readable.

    Raises:
        BrokenPipeError: the reader of stdout is gone. The next write would fail too, but it may be hours away.
    """
    import select  # only verbs that wait need it

    poller = select.poll()
    poller.register(1, 0)  # an error or a hang-up is always reported
    if source is not None:
        poller.register(source, select.POLLIN)
    found = dict(poller.poll(None if timeout_s is None else timeout_s * 1000))
    if found.get(1, 0) & (select.POLLERR | select.POLLHUP):
        raise BrokenPipeError


def without_keeper(run: RunPaths, state: RunState) -> str:
    """Return a line that says how to continue a run that has no keeper but has not ended."""
    if state.mode == "observed":
        return f"{run.run_id}: it is no longer watched"
    take, go_on = f"`stoker attach --adopt {run.run_id}`", f"`stoker continue {run.run_id}`"
    return (
        f"its supervisor process is gone: {take} takes over what lives of it, {go_on} starts the next attempt"
    )


def console_on_stdout(run: RunPaths, *, as_json: bool) -> ConsoleView:
    """Return a view that prints a run's events to stdout, hiding secrets from this environment."""
    from supervisor.text.redact import Redactor
    from supervisor.views.headless.console import ConsoleSettings, ConsoleView, wants_colour

    redactor, colour = Redactor.of(os.environ.items()), wants_colour(sys.stdout, os.environ)
    settings = ConsoleSettings(
        stdout=sys.stdout, log_file=None, colour=colour, as_json=as_json, redactor=redactor
    )
    return ConsoleView(run, settings)


def refuse(verb: str, what: str, reasons: Iterable[str]) -> int:
    """Print one line per reason. Returns 3, the exit code for refusing before anything was done."""
    for reason in reasons:
        complain(verb, f"{what}: {reason}")
    return EXIT_REFUSED


def user_settings(env: Mapping[str, str]) -> Path:
    """Return the path of the user's settings: ``stoker/config.toml`` under ``$XDG_CONFIG_HOME`` or ``~/.config``."""
    return Path(xdg_home(env, "CONFIG", ".config"), "stoker", "config.toml")


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` with one-line errors that suggests the closest flag and disallows abbreviations."""

    def __init__(self, *, prog: str, description: str | None = None) -> None:
        summary, _, _rest = (description or "").partition("\n\n")
        super().__init__(prog=prog, description=summary, allow_abbrev=False)

    def parsed(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse arguments with flags before, between or after the others. After ``--``, nothing is a flag."""
        return self.parse_args(argv) if "--" in argv else self.parse_intermixed_args(argv)

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, file=file, end="", flush=True)  # argparse would swallow the error

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with code 2."""
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        hint = f"`{self.prog} --help` lists what it takes"
        if unknown:
            import difflib

            flags = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[1].split("=")[0], flags, n=1, cutoff=0.6)
            message = f"unknown argument {unknown[1]!r}"
            hint = f"did you mean {near[0]}?" if near else hint
        sys.exit(complain(self.prog.removeprefix("stoker").strip(), f"{message}: {hint}"))


def own_words(
    parser: argparse.ArgumentParser, argv: Sequence[str], actions: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Split ``stoker VERB ACTION [flags] WORDS`` into the verb's own arguments and those for ``stoker run``."""
    values = {
        option: action.nargs != 0
        for action in parser._actions  # noqa: SLF001 - argparse has no other list of them
        for option in action.option_strings
    }
    if not argv or argv[0] not in actions:
        return list(argv), []
    at = 1
    while at < len(argv) and argv[at].partition("=")[0] in values:
        at += 2 if values[argv[at].partition("=")[0]] and "=" not in argv[at] else 1
    words = list(argv[at:])
    if words[:1] == ["--"] and words[1:2] and words[1].startswith("-"):
        del words[0]  # "--" ends our flags; `stoker run` needs it before a command
    return list(argv[:at]), words


def add_appearance_flags(parser: argparse.ArgumentParser) -> None:
    """Declare ``--theme``, ``--ascii`` and ``--lang``."""
    group = parser.add_argument_group("looks")
    group.add_argument("--theme", metavar="NAME", help="dark, light, or safe (for red-green color blindness)")
    group.add_argument("--ascii", action="store_true", default=None, help="draw with ASCII only")
    group.add_argument("--lang", metavar="LANG", help="en or zh (default: from LANG)")


def appearance_from(flags: Mapping[str, object], env: Mapping[str, str]) -> Appearance:
    """Resolve the appearance: flag > STOKER_* > ./stoker.toml > user's config.toml (``[ui]`` tables).

    Raises:
        JobError: a value is not allowed, or a file has errors: one line each.
    """
    from supervisor.views.appearance import appearance_of

    user = user_settings(env)
    variables = {name: env.get(f"STOKER_{name.upper()}") for name in ("theme", "ascii", "lang")}
    sources: list[tuple[str, Mapping[str, object]]] = [
        ("--theme, --ascii, --lang", flags),
        ("STOKER_THEME, STOKER_ASCII, STOKER_LANG", variables),
        # Other parts of a job's file matter only to `stoker run`. They must not prevent reading a log.
        ("./stoker.toml", settings_table(Path("stoker.toml"), "ui", whole=False)),
        (str(user), settings_table(user, "ui", whole=True)),
    ]
    return appearance_of(sources, env)


def appearance_given(parsed: ParsedRun, env: Mapping[str, str]) -> Appearance:
    """Resolve the appearance from the arguments to ``stoker run``.

    Raises:
        JobError: see `appearance_from`.
    """
    flags = {
        "theme": parsed.flag("theme"),
        "ascii": parsed.switch("ascii") or None,
        "lang": parsed.flag("lang"),
    }
    return appearance_from(flags, env)


def metric_rules_of_user(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the user's ``[[metrics]]`` rules as (name, regex) pairs, or () if the settings file has errors (the TUI says so)."""
    try:
        found = settings_in(user_settings(env), only="metrics")
    except JobError:
        return ()
    return found.metrics if found is not None else ()


def own_rules() -> tuple[OwnSignature, ...]:
    """Return the ``[[signature]]`` tables from ./stoker.toml and the user's settings. ./stoker.toml wins for duplicate ids.

    Raises:
        JobError: a file cannot be read, or a table is invalid.
    """
    rules: dict[str, OwnSignature] = {}
    for path in (Path("stoker.toml"), user_settings(os.environ)):
        if path.is_file() and not os.access(path, os.R_OK):
            raise JobError(f"{path}: cannot be read")
        found = settings_in(path, only="signature")
        for rule, _ in found.signatures if found is not None else ():
            rules.setdefault(rule.id, rule)
    return tuple(rules.values())


def settings_table(path: Path, name: str, *, whole: bool) -> dict[str, Any]:
    """Return a table of a settings file, checked as in `stoker run`, or {} if missing. If `whole`, check the whole file.

    Raises:
        JobError: the file has errors, one line each.
    """
    found = settings_in(path, only="" if whole else name)
    return dict(found.file.values.get(name, {})) if found is not None and found.file is not None else {}


def settings_in(path: Path, *, only: str) -> FileSettings | None:
    """Return a settings file, checked as in `stoker run`, or None if missing. `only` limits the check to one table.

    Raises:
        JobError: the file has errors, one line each.
    """
    try:
        data = read_regular(path)[:MOST_BYTES]
    except OSError:
        return None

    from supervisor.job.config.files import parse_config
    from supervisor.job.config.setting_values import ConfigFile, check_file
    from supervisor.run.records import FailureClass

    name = str(path.absolute())
    values = {key: value for key, value in parse_config(name, data).items() if not only or key == only}
    file = ConfigFile(name, values, data.decode("utf-8", "replace"))
    return check_file(file, classes=frozenset(map(str, FailureClass)), is_job=False)
