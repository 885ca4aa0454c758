"""List known runs, newest first: state, steps, verdict, where."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.cli.common import (
    Parser,
    add_appearance_flags,
    add_scope,
    appearance_from,
    complain,
    has_terminal,
    say,
    say_json,
)

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec
    from supervisor.run.paths import RunPaths
    from supervisor.run.state import AttemptState, RunState

VERDICT_CELLS = 20  # cuda_oom→healthy
# On a terminal wider than this an error's own message has a quarter of what is more, up to so many cells.
VERDICT_WIDER_FROM = 80
MOST_VERDICT = 56
LEAST_COMMAND = 12  # cells; below them no command is printed
COMMAND_CELLS = 48  # of a command that a folder follows
NUMBER_CELLS = 12
MAX_NAME = 24  # cells of a terminal's line, also of a note; a pipe gets all of both


class Columns(NamedTuple):
    """What is listed of a run. `reason`: what a person reads in place of the verdict's class. `again`: the command that starts it with the declarations that it lacked. `ended`: when, empty while it may continue. `name`: the name it was given; empty where there is only the script's. `note`: its newest one."""

    run: str
    state: str
    attempt: str
    step: str
    verdict: str
    folder: str
    name: str = ""
    batch: str = ""
    rate: str = ""
    command: str = ""
    ended: str = ""
    note: str = ""
    reason: str = ""
    again: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_scope(parser)
    parser.add_argument("-n", "--number", type=int, default=20, help="how many to list (default 20)")
    parser.add_argument("--json", action="store_true", help="one object a run on a line of its own")


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from supervisor.run.index import is_under, known_runs, listed_names, listed_notes, runs_dir

    appearance_from({}, os.environ)  # a fault in the settings is reported by every verb that lists runs
    place = runs_dir(args.runs_dir, os.environ)
    if place.exists() and not place.is_dir():
        return complain("runs", f"{place}: not a folder")
    known = known_runs(place, os.environ, elsewhere=args.all or args.runs_dir is None)
    here = [found for found in known if is_under(found, place)]
    shown = known if args.all else here
    elsewhere = len(known) - len(here)
    if not shown:
        say(f"no run under {place}: start one with `stoker run`", file=sys.stderr)
    if elsewhere and not args.all:
        say(f"{elsewhere} in other folders: `stoker runs --all`", file=sys.stderr)
    shown = shown[: max(args.number, 0)]
    names, notes = listed_names(os.environ), listed_notes(os.environ)
    known_of = [(found, names.get(str(found.root)), notes.get(str(found.root), NO_NOTE)) for found in shown]
    if args.json:
        for each in known_of:
            say_json(facts_of(*each))
        return 0
    listed = [columns_of(*each) for each in known_of]
    # A pipe gets all of it; a terminal what fits on one line.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    # The header is for a person: a pipe's first line is a run.
    for line in lines_of([HEADER, *listed] if listed and width is not None else listed, width):
        say(line)
    if (lacked := next((each for each in listed if each.again), None)) is not None:
        say(
            f"{lacked.run} could not be restarted; with these flags it would have been:",
            lacked.again,
            file=sys.stderr,
        )
    return 0


HEADER = Columns(
    "RUN", "STATE", "ATTEMPT", "STEP", "VERDICT", "FOLDER", "NAME", "BATCH", "LR", "COMMAND", "ENDED", "NOTE"
)
NO_NOTE = (0.0, "")
RATES = ("samples_per_sec", "tokens_per_sec", "step_time_s", "data_wait_s")


def columns_of(run: RunPaths, listed: str | None = None, noted: tuple[float, str] = NO_NOTE) -> Columns:
    """What its journal says of a run now. `listed`, `noted`: its name and its note in the index."""
    from supervisor.run.history.changes import declared_again
    from supervisor.run.journal import read_state
    from supervisor.run.state import HeldOpen
    from supervisor.text.decode import printable
    from supervisor.views.model.run_list import (
        RunRow,
        batch_of,
        command_of,
        given_name,
        newest_rate,
        note_of,
        watched_word,
    )

    state = read_state(run.node().journal)
    word = _state_word(run, state)
    word = watched_word(state, live=word == "live") or word
    if isinstance(state.condition, HeldOpen) and word == "live":
        word = f"failed, waiting{_cost(run)}"
    elif state.is_over and state.failed_for is not None:
        word = "failed, stopped"
    attempt, job, row = state.attempt, _job_of(run), RunRow(run, state, live=False)
    command = command_of(job)
    step = "-" if state.last_step is None else str(state.last_step)
    step += "+" if attempt is not None and attempt.has_unread else ""  # its log was not read to its end
    total = f"/{state.planned_steps}" if state.planned_steps else ""
    cells = (
        run.run_id,
        word,
        f"attempt {len(state.attempts)}",
        f"step {step}{total}",
        row.history or "-",
        str(run.root),
        given_name(job, state.name, listed),
        batch_of(attempt.shown_batch if attempt is not None else None),
        newest_rate(state, command),
        " ".join(command),
        _ended_text(state),
        note_of(state, noted),
        row.reason,
        declared_again(state, job) if job is not None else "",
    )
    return Columns(*map(printable, cells))


def _ended_text(state: RunState) -> str:
    """When it ended, or when the attempt failed after which it waits for a person; empty while it trains."""
    from supervisor.run.state import Finished, HeldOpen
    from supervisor.views.format import day_and_time

    ended_t = state.ended_t if isinstance(state.condition, Finished) else None
    if isinstance(state.condition, HeldOpen) and state.attempt is not None:
        ended_t = state.attempt.ended_t
    return day_and_time(ended_t, time.time()) if ended_t is not None else ""


def _state_word(run: RunPaths, state: RunState) -> str:
    from supervisor.run.access.ownership import has_keeper
    from supervisor.run.state import Finished

    if isinstance(state.condition, Finished):
        return str(state.condition.outcome)
    return "live" if has_keeper(run) else "no keeper"


def _verdict_of(state: RunState) -> str | None:
    """The newest attempt's own class; None without one, and where somebody ended it."""
    attempt = state.attempt
    verdict = attempt.verdict if attempt is not None and not attempt.ended_on_request else None
    return None if verdict is None else str(verdict.failure)


def _reason_of(attempt: AttemptState | None) -> str | None:
    """The headline of the newest attempt's verdict; None without one, and where somebody ended it."""
    if attempt is None or attempt.verdict is None or attempt.ended_on_request:
        return None
    return attempt.verdict.title


def facts_of(run: RunPaths, listed: str | None = None, noted: tuple[float, str] = NO_NOTE) -> dict[str, Any]:
    """What `--json` prints of a run, in the index under the name `listed` and with the note `noted`: times in seconds since the epoch, None for what is not known."""
    import msgspec

    from supervisor.run.access.ownership import has_keeper
    from supervisor.run.history.changes import declared_again
    from supervisor.run.journal import read_state
    from supervisor.text.redact import redact_argv
    from supervisor.views.model.run_list import command_of, given_name, newest_rate, note_of, recovered_from

    state = read_state(run.node().journal)
    job = _job_of(run)
    attempt = state.attempt
    batch = attempt.shown_batch if attempt is not None else None
    measured = attempt.measured if attempt is not None else None
    now = state.progress
    return {
        "run": run.run_id,
        "name": given_name(job, state.name, listed) or None,
        "note": note_of(state, noted) or None,
        "state": _state_word(run, state),
        "script": job.entry if job is not None else None,
        "arguments": list(redact_argv(job.entry_args)) if job is not None else None,
        "attempts": len(state.attempts),
        "step": state.last_step,
        "total_steps": state.planned_steps,
        "verdict": _verdict_of(state),
        "reason": _reason_of(attempt),
        "start_again": (declared_again(state, job) if job is not None else "") or None,
        "recovered_from": recovered_from(state),
        "micro_batch": batch.micro_batch_per_rank if batch is not None else None,
        "accumulation": batch.accumulation_steps if batch is not None else None,
        "global_batch": batch.global_batch if batch is not None and batch.ranks_known else None,
        "measured": msgspec.to_builtins(measured) if measured is not None else None,
        **{name: getattr(now, name, None) for name in RATES},
        "memory_peak_bytes": attempt.trial.peak_bytes if attempt is not None and attempt.trial else None,
        "learning_rate": newest_rate(state, command_of(job)) or None,
        "best_loss": state.best_loss,
        "loss_not_finite": _not_finite_of(attempt),
        "elapsed_s": state.elapsed_s(state.now(time.time()), has_keeper=has_keeper(run)),
        "started": state.started_t,
        "ended": state.ended_t,
        "folder": str(run.root),
    }


def _not_finite_of(attempt: AttemptState | None) -> dict[str, Any] | None:
    """Where the loss of the newest attempt became nan or inf, and where it was a number again; None where it did not."""
    found = attempt.not_finite if attempt is not None else None
    if attempt is None or found is None:
        return None
    again = attempt.finite_again
    return {
        "value": found.value,
        "step": found.step,
        "rank": found.rank,
        "since": found.t,
        "until_step": again.step if again is not None else None,
        "until": again.t if again is not None else None,
    }


def _cost(run: RunPaths) -> str:
    """What the process that waits for a person takes of this machine's memory; empty where it is elsewhere."""
    import psutil

    from supervisor.run.access.lock import holder_here

    holder = holder_here(run.node().lock)
    if holder is None:
        return ""
    try:
        return f" ({psutil.Process(holder.pid).memory_info().rss / 1e6:.0f} MB)"
    except psutil.Error:
        return ""


def _job_of(run: RunPaths) -> JobSpec | None:
    """What it runs; None where run.json cannot be read."""
    from supervisor.run.runfile import BadRunFile, read_run_file

    try:
        return read_run_file(run.run_json).job
    except BadRunFile:
        return None


def lines_of(runs: Sequence[Columns], width: int | None) -> list[str]:
    """One line a run, all in the same columns, of at most `width` cells; None: whole.

    What gives way, in this order: batch, learning rate, the folder, the attempt, the date in the id, the notes, the names, when it ended, the total
    of steps, the step; what remains of a failure's reason is cut.
    Names and notes are columns only where a run was given one; in a pipe they follow the folder, so that no word moves. Script and arguments take what is left of a line, and are not printed in a pipe (`--json` has them).
    """
    if not runs:
        return []
    if width is None:
        return [
            f"{_whole(run)} {run.folder}{run.name and f'  {run.name}'}{run.note and f'  note: {run.note}'}"
            for run in runs
        ]
    most = min(VERDICT_CELLS + max(width - VERDICT_WIDER_FROM, 0) // 4, MOST_VERDICT)
    runs = [
        run if run is HEADER else run._replace(verdict=_cut(run.reason or run.verdict, most)) for run in runs
    ]
    verdict_cells = max(VERDICT_CELLS, *(len(run.verdict) for run in runs))
    longest_end = max((len(run.ended) for run in runs if run is not HEADER), default=0)

    def end(of: Columns) -> str:
        return f"{of.ended:{max(longest_end, len(HEADER.ended))}} " if longest_end else ""

    def whole(of: Columns) -> str:
        return f"{of.run:34} {of.state:10} {end(of)}{of.attempt:11} {of.step:17} {of.verdict:{verdict_cells}}"

    names = _given_cells(runs, [run.name for run in runs])
    notes = _given_cells(runs, [run.note for run in runs])
    given = [name + note for name, note in zip(names, notes, strict=True)]
    extra = [_extra(run, runs) for run in runs]
    if any(extra):
        commands = [run.command[: max(COMMAND_CELLS, len(HEADER.command))] for run in runs]
        longest = max(map(len, commands)) + 1
        lines = [
            f"{whole(run)} {name}{more}{command:{longest}}{run.folder}".rstrip()
            for run, name, more, command in zip(runs, given, extra, commands, strict=True)
        ]
        if all(len(line) <= width for line in lines):
            return lines
        lines = [f"{whole(run)} {name}{more}" for run, name, more in zip(runs, given, extra, strict=True)]
        if max(map(len, lines)) + LEAST_COMMAND <= width:
            return [_with_command(line, run, width) for line, run in zip(lines, runs, strict=True)]
    from supervisor.views.format import short_id

    forms: list[Callable[[Columns, str], str]] = [
        lambda of, name: f"{whole(of)} {name}{of.folder}",
        lambda of, name: f"{whole(of)} {name}",
        lambda of, name: (
            f"{of.run:29} {of.state:10} {end(of)}{of.step:17} {of.verdict:{verdict_cells}} {name}"
        ),
        lambda of, name: (
            f"{short_id(of.run):16} {of.state:10} {end(of)}{of.step:17} {of.verdict:{verdict_cells}} {name}"
        ),
        lambda of, _: f"{short_id(of.run):16} {of.state:10} {end(of)}{of.step:17} {of.verdict}",
        lambda of, _: f"{short_id(of.run):16} {of.state:10} {of.step:17} {of.verdict}",
        lambda of, _: f"{short_id(of.run):16} {of.state:10} {of.step.partition('/')[0]:9} {of.verdict}",
        lambda of, _: f"{short_id(of.run)[:16]:16} {of.state:10} {of.verdict}",
    ]
    for form, called in ((form, called) for form in forms for called in (given, names)):
        lines = [form(run, name).rstrip() for run, name in zip(runs, called, strict=True)]
        if all(len(line) <= width for line in lines):
            cells = max(map(len, lines)) + 1
            if cells + LEAST_COMMAND > width or form is forms[0]:
                return lines
            return [
                _with_command(f"{line:{cells}}", run, width) for line, run in zip(lines, runs, strict=True)
            ]
    return [_cut(line, width) for line in lines]


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def _whole(of: Columns) -> str:
    return f"{of.run:34} {of.state:10} {of.attempt:11} {of.step:17} {of.verdict:{VERDICT_CELLS}}"


def _extra(of: Columns, runs: Sequence[Columns]) -> str:
    """Batch and learning rate as wide as the widest; empty where no run has them."""
    text = ""
    for cell, all_of_them in ((of.batch, [r.batch for r in runs]), (of.rate, [r.rate for r in runs])):
        known = [found[:NUMBER_CELLS] for found in all_of_them]
        if any(found for run, found in zip(runs, known, strict=True) if run is not HEADER):
            text += f"{cell[:NUMBER_CELLS]:{max(map(len, known))}} "
    return text


def _with_command(line: str, of: Columns, width: int) -> str:
    left = width - len(line)
    return (line + _cut(of.command, left)).rstrip()


def _given_cells(runs: Sequence[Columns], texts: Sequence[str]) -> list[str]:
    """A column of names or notes, as wide as the widest; empty where no run has one."""
    longest = max((len(text) for run, text in zip(runs, texts, strict=True) if run is not HEADER), default=0)
    cells = max(min(longest, MAX_NAME), len(HEADER.name))
    if not longest:
        return [""] * len(texts)
    return [f"{_cut(text, cells)} ".ljust(cells + 1) for text in texts]


def browse(argv: list[str]) -> int:
    """`stoker` alone on a terminal: open the list of runs until the person leaves it. Exit code 2: an unknown flag."""
    from supervisor.run.index import known_runs, runs_dir
    from supervisor.views.appearance import BadAppearance

    parser = Parser(
        prog="stoker", description="`stoker` alone on a terminal: the list of live and past runs."
    )
    add_scope(parser)
    add_appearance_flags(parser)
    args, env = parser.parse_args(argv), os.environ
    try:
        appearance = appearance_from(vars(args), env)
    except BadAppearance as error:
        return complain("", error)
    if not has_terminal():
        return complain("", "the list of runs needs a terminal: `stoker runs` prints it")
    from supervisor.cli.open_app import adopter, continuer, kept_file
    from supervisor.views.model.run_list import Scope
    from supervisor.views.tui.terminal import run_browser

    place = runs_dir(args.runs_dir, env)
    run_browser(
        lambda: known_runs(place, env),
        scope=Scope(place, everywhere=args.all),
        adopter=adopter(env),
        continuer=continuer(env),
        appearance=appearance,
        keep=kept_file(env),
    )
    return 0
