"""Make a job file for an existing script and start the job. Asks only for what it cannot find out on its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from supervisor.cli.common import appearance_given, complain, say
from supervisor.cli.job_inputs import gpu_count, load_draft
from supervisor.job.arguments.run_arguments import INIT_FLAGS, ParsedRun
from supervisor.job.errors import JobError
from supervisor.job.launch.guided import (
    Around,
    Choices,
    Found,
    GuidedStart,
    Question,
    choices_of,
    command_of,
    found_in,
    job_file,
    likely_scripts,
    slurm_of,
)
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.interpreter import find_interpreter
from supervisor.run.node_files import create
from supervisor.text.redact import redact_text
from supervisor.views.wording.translate import Tr, words_in

USAGE = """\
usage: stoker init [flags] [SCRIPT.py [the script's arguments]]
       stoker init [flags] -m MODULE [the module's arguments]

Inspects the folder, the GPUs and the script, asks the rest, and writes a job file for `stoker run --config FILE`.
Flags of `stoker run` that have a key in a job file are kept in it (--nproc-per-node 2, --max-retries 5, --env K=V).
With --yes nothing is asked. No file is ever overwritten."""


def main(argv: list[str]) -> int:
    """Run the verb. Return 0 once the file exists, or the exit code of the run if one was started."""
    from supervisor.cli.job_inputs import parse_words

    try:
        parsed = parse_words(argv, {}, INIT_FLAGS)
        if parsed.help:
            say(*_help().splitlines())
            return 0
        return guide(parsed, os.environ, Path.cwd())
    except JobError as error:
        return complain("init", error)


def guide(parsed: ParsedRun, env: Mapping[str, str], cwd: Path) -> int:
    """Ask for missing values, write the file, and offer to start the job.

    Raises:
        JobError: the given values do not work, or the file exists.
    """
    tr = words_in(appearance_given(parsed, env).spoken)
    start = guided_start(choices_of(parsed, parsed.flag("out") or ""), env, cwd)
    if parsed.switch("yes"):
        while (question := start.question()) is not None:
            start.take(question.default)
    else:
        _ask_all(start, tr)
    several = start.choices.several
    if several and parsed.switch("start"):
        raise JobError("--start starts one machine's part: with several machines start each by the command")
    write_new(cwd / os.path.expanduser(start.choices.file), job_file(start.choices))
    command = command_of(start.choices, start.around)
    _say(tr(f"{start.choices.file} is written; to start it:"))
    _say(f"  {command}")
    if several and start.around.slurm is None:
        _say(tr("on each machine, with K = 0 on the first, 1 on the next, …"))
    wanted = parsed.switch("start")
    if not wanted and not several and not parsed.switch("yes") and sys.stdin.isatty():
        wanted = _yes(tr("start it now?"))
    return _start(start.choices.file, parsed) if wanted else 0


def _start(file: str, parsed: ParsedRun) -> int:
    from supervisor.cli.run import main as run

    looks = [f"--{name}={parsed.flag(name)}" for name in ("theme", "lang") if parsed.flag(name)]
    return run([*looks, *(["--ascii"] if parsed.switch("ascii") else []), "--config", file])


def _ask_all(start: GuidedStart, tr: Tr) -> None:
    """Ask plain questions, each answered on one line. On a terminal, repeat a question after an invalid answer."""
    for line in start.around.lines():
        _say(f"· {tr(line)}")
    shown: Found | None = None
    while (question := start.question()) is not None:
        if start.found is not None and start.found != shown and "ranks" in start.choices.decided:
            shown = start.found
            _say(tr("known so far:"))
            width = max(len(tr(label)) for label, _ in shown.lines)
            for label, text in shown.lines:
                _say(f"  {tr(label):<{width}}  {tr(text)}")
        text = _ask(question, tr)
        try:
            start.take(text)
        except JobError as error:
            if not sys.stdin.isatty():
                raise
            complain("init", error)


def _ask(question: Question, tr: Tr) -> str:
    """Read one answer. Raises JobError at end of input."""
    _say(f"? {tr(question.text)}")
    for number, option in enumerate(question.options, start=1):
        _say(f"  {number}  {option.value}{f'  {tr(option.text)}' if option.text else ''}")
    say(f"  [{question.default}] > " if question.default else "  > ", end="", flush=True)
    try:
        line = sys.stdin.readline()
        line.encode()  # in the C locale, invalid UTF-8 arrives as surrogates
    except UnicodeError:
        say()
        raise JobError(f"the answer to “{question.text}” is no UTF-8 text; nothing is written") from None
    if not line.endswith("\n"):
        say()
    if not line:
        raise JobError(
            f"the input ended before an answer to “{question.text}”; nothing is written: --yes takes what is proposed"
        )
    return line.strip()


def _yes(question: str) -> bool:
    """Ask a yes/no question on the terminal. An empty answer means yes; end of input means no."""
    say(f"? {question} [Y/n] ", end="", flush=True)
    line = sys.stdin.readline()
    return line.strip().lower() in {"", "y", "yes"} and bool(line)


def _say(text: str) -> None:
    say(redact_text(text), flush=True)


def _help() -> str:
    from supervisor.job.arguments.run_arguments import STOKER_FLAGS, help_text

    own = help_text(INIT_FLAGS, "init")
    looks = help_text([flag for flag in STOKER_FLAGS if flag.setting.startswith("ui.")], "screen")
    return f"{USAGE}\n\nflags:\n{own}\n\nlooks:\n{looks}"


# Do not search a folder with more files than this. It is a data set or a home folder.
MOST_NAMES = 2000
# Folders that contain none of the user's own scripts.
SKIPPED = frozenset(
    {"runs", "node_modules", "venv", "env", "build", "dist", "tests", "test", "docs", "__pycache__"}
)


def guided_start(choices: Choices, env: Mapping[str, str], cwd: Path) -> GuidedStart:
    """Create the guided start for a folder.

    Raises:
        JobError: a given value does not work.
    """
    checked: set[object] = set()

    def read(draft: Choices) -> Found:
        spec = load_draft(draft.file or "new.toml", job_file(draft), env, cwd)
        if spec.python is not None and spec.python not in checked:
            find_interpreter(spec, env)
            checked.add(spec.python)
        return found_in(spec)

    return GuidedStart(look_around(env, cwd), choices, read)


def look_around(env: Mapping[str, str], cwd: Path) -> Around:
    """Find the folder's scripts and names, the GPUs, SLURM, and a Python that has torch. No script is run or imported."""
    installed = shutil.which("sbatch", path=env.get("PATH")) is not None
    names = frozenset(islice(_names(cwd), MOST_NAMES))
    slurm = slurm_of(env, installed=installed)
    return Around(likely_scripts(_sources(cwd)), gpu_count(env), slurm, names, _torch_here(env))


def _sources(cwd: Path) -> Iterator[str]:
    """Yield the Python files in the folder, then those in its subfolders."""
    folders = []
    for name in sorted(islice(_names(cwd), MOST_NAMES)):
        if _is_source(cwd, name):
            yield name
        elif not name.startswith(".") and name not in SKIPPED and (cwd / name).is_dir():
            folders.append(name)
    for folder in folders:
        inside = (f"{folder}/{name}" for name in sorted(islice(_names(cwd / folder), MOST_NAMES)))
        yield from (name for name in inside if _is_source(cwd, name))


def _is_source(cwd: Path, name: str) -> bool:
    return name.endswith(".py") and name.isprintable() and (cwd / name).is_file()


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except OSError:
        return


def _torch_here(env: Mapping[str, str]) -> str:
    try:
        found = find_interpreter(JobSpec("", EntryKind.SCRIPT, ""), env)
    except JobError:
        return ""
    return f"torch {found.torch_version} in {found.path}"


def write_new(path: Path, text: str) -> None:
    """Write a new file atomically, never overwriting an existing one.

    Raises:
        JobError: the name is taken, or the folder is not writable.
    """
    try:
        if not create(path, text.encode()):
            raise JobError(f"{path}: already exists; give another name with --out")
        path.chmod(0o666 & ~_umask())
    except (OSError, UnicodeEncodeError) as error:
        raise JobError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
