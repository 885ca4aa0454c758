"""Make a job file for a script you have, and start it: asks what cannot be found out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.common import appearance_given, complain, say
from supervisor.job.arguments.flags import INIT_FLAGS
from supervisor.job.errors import JobError
from supervisor.job.guided import Found, GuidedStart, Question, choices_of, command_of, job_file
from supervisor.text.redact import redact_text
from supervisor.views.appearance import Appearance
from supervisor.views.wording.translate import Tr, words_in

if TYPE_CHECKING:
    from supervisor.job.arguments.run_arguments import ParsedRun
    from supervisor.views.tui.start_form import StartForm

USAGE = """\
usage: stoker init [flags] [SCRIPT.py [the script's arguments]]
       stoker init [flags] -m MODULE [the module's arguments]

Looks at the folder, the GPUs and the script, asks the rest, and writes a job file for `stoker run --config FILE`.
Flags of `stoker run` that have a key in a job file are kept in it (--nproc-per-node 2, --max-retries 5, --env K=V).
With --yes nothing is asked. No file is ever overwritten."""


def main(argv: list[str]) -> int:
    """Run the verb; 0 once the file is there, or the exit code of the run that was started."""
    from supervisor.cli.starting.job_inputs import parse_words

    try:
        parsed = parse_words(argv, {}, INIT_FLAGS)
        if parsed.help:
            say(*_help().splitlines())
            return 0
        return guide(parsed, os.environ, Path.cwd())
    except JobError as error:
        return complain("init", error)


def guide(parsed: ParsedRun, env: Mapping[str, str], cwd: Path) -> int:
    """Ask what is not given, write the file, offer to start it.

    Raises:
        JobError: what was given does not work, or the file exists.
    """
    from supervisor.cli.starting.guided_inputs import guided_start, write_new

    appearance = appearance_given(parsed, env)
    start = guided_start(choices_of(parsed, parsed.flag("out") or ""), env, cwd)
    tr = words_in(appearance.spoken)
    begin: bool | None = None
    if parsed.switch("yes"):
        while (question := start.question()) is not None:
            start.take(question.default)
    elif start.question() is not None and _can_show(parsed, env):
        shown = _form(start, appearance, env)
        if not shown.write:
            _say(tr("nothing is written"))
            return 130
        begin = shown.begin
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
    wanted = True if parsed.switch("start") else begin
    if wanted is None and not several and not parsed.switch("yes") and sys.stdin.isatty():
        wanted = _yes(tr("start it now?"))
    return _start(start.choices.file, parsed) if wanted else 0


def _can_show(parsed: ParsedRun, env: Mapping[str, str]) -> bool:
    """Whether a form can be shown here."""
    plain = parsed.switch("plain") or env.get("TERM", "dumb") == "dumb"
    return sys.stdin.isatty() and sys.stdout.isatty() and not plain


def _form(start: GuidedStart, appearance: Appearance, env: Mapping[str, str]) -> StartForm:
    """The form, once the person has left it."""
    from supervisor.cli.open_app import kept_file
    from supervisor.views.tui.saved_layout import load
    from supervisor.views.tui.start_form import StartForm
    from supervisor.views.tui.terminal import terminal_on_stderr

    remembered = load(kept_file(env)).theme
    form = StartForm(
        start,
        appearance=appearance,
        remembered=remembered,
        can_begin=lambda: not start.choices.several,
        signals=True,
    )
    with terminal_on_stderr():
        form.run()
    return form


def _start(file: str, parsed: ParsedRun) -> int:
    from supervisor.cli.run import main as run

    looks = [f"--{name}={parsed.flag(name)}" for name in ("theme", "lang") if parsed.flag(name)]
    return run([*looks, *(["--ascii"] if parsed.switch("ascii") else []), "--config", file])


def _ask_all(start: GuidedStart, tr: Tr) -> None:
    """Plain questions, one line an answer; on a terminal a wrong one is asked again."""
    for line in start.around.lines():
        _say(f"· {tr(line)}")
    shown: Found | None = None
    while (question := start.question()) is not None:
        if start.found is not None and start.found != shown and "ranks" in start.choices.settled:
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
    """One answer. Raises JobError at the end of the input."""
    _say(f"? {tr(question.text)}")
    for number, option in enumerate(question.options, start=1):
        _say(f"  {number}  {option.value}{f'  {tr(option.text)}' if option.text else ''}")
    say(f"  [{question.default}] > " if question.default else "  > ", end="", flush=True)
    try:
        line = sys.stdin.readline()
        line.encode()  # where the locale is C, what is no UTF-8 comes as surrogates
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
    """Ask on the terminal; an empty answer is yes, the input's end is no."""
    say(f"? {question} [Y/n] ", end="", flush=True)
    line = sys.stdin.readline()
    return line.strip().lower() in {"", "y", "yes"} and bool(line)


def _say(text: str) -> None:
    say(redact_text(text), flush=True)


def _help() -> str:
    from supervisor.job.arguments.flags import STOKER_FLAGS, help_text

    own = help_text(INIT_FLAGS, "init")
    looks = help_text([flag for flag in STOKER_FLAGS if flag.setting.startswith("ui.")], "screen")
    return f"{USAGE}\n\nflags:\n{own}\n\nlooks:\n{looks}"
