"""List known runs, newest first: state, steps, verdict, location. With --scaling: how the named runs scale."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from supervisor.cli.common import (
    Parser,
    add_appearance_flags,
    add_scope,
    appearance_from,
    complain,
    has_terminal,
    named_run,
    say,
    say_json,
)
from supervisor.job.errors import JobError
from supervisor.run.index import known_runs, runs_dir, those_under
from supervisor.run.state import AttemptState, Finished, HeldOpen
from supervisor.text.decode import printable
from supervisor.views.format import day_and_time, short_id
from supervisor.views.model.run_list import (
    RunRow,
    Scope,
    batch_of,
    newest_rate,
    recovered_from,
    rows_of,
    watched_word,
)

VERDICT_CELLS = 20  # cuda_oom→healthy
# On a wider terminal, an error's own message gets a quarter of the extra width, up to this many cells.
VERDICT_WIDER_FROM = 80
MOST_VERDICT = 56
LEAST_COMMAND = 12  # cells; with fewer, no command is printed


class Column(NamedTuple):
    """A column of the list: its title, a function that returns its text, and its maximum width in terminal cells."""

    title: str
    text: Callable[[RunRow], str]
    most: int = 999


def _state_text(row: RunRow) -> str:
    state, is_held = row.state, isinstance(row.state.condition, HeldOpen)
    if is_held and row.live:
        return "failed, waiting"
    if state.is_over and state.failed_for is not None:
        return "failed, stopped"
    return watched_word(state, live=row.live) or _state_word(row)


def _step_text(row: RunRow) -> str:
    state = row.state
    step = "-" if state.last_step is None else str(state.last_step)
    return f"step {step}{'+' if row.is_cut else ''}{f'/{state.planned_steps}' if state.planned_steps else ''}"


def _ended_text(row: RunRow) -> str:
    """Return when the run ended (or its last attempt, if the run is held open), or "" if it is still going."""
    state, attempt = row.state, row.state.attempt
    ended_t = state.ended_t if isinstance(state.condition, Finished) else None
    if isinstance(state.condition, HeldOpen) and attempt is not None:
        ended_t = attempt.ended_t
    return day_and_time(ended_t, time.time()) if ended_t is not None else ""


def _batch_text(row: RunRow) -> str:
    attempt = row.state.attempt
    return batch_of(attempt.shown_batch if attempt is not None else None)


# Columns in display order. The command comes last and takes the rest of the line.
COLUMNS = {
    "run": Column("RUN", lambda row: row.run.run_id),
    "state": Column("STATE", _state_text),
    "ended": Column("ENDED", _ended_text),
    "attempt": Column("ATTEMPT", lambda row: f"attempt {len(row.state.attempts)}"),
    "step": Column("STEP", _step_text),
    "verdict": Column("VERDICT", lambda row: row.history or "-", VERDICT_CELLS),
    "name": Column("NAME", lambda row: row.given, 24),
    "note": Column("NOTE", lambda row: row.note, 24),
    "batch": Column("BATCH", _batch_text, 12),
    "rate": Column("LR", lambda row: newest_rate(row.state, row.command), 12),
    "folder": Column("FOLDER", lambda row: str(row.run.root)),
    "command": Column("COMMAND", lambda row: " ".join(row.command)),
}
# Columns to drop in turn on a narrow terminal. The id contains `date`, and the steps contain `total`.
GIVES_WAY = [
    "folder",
    "command",
    "rate",
    "batch",
    "attempt",
    "date",
    "note",
    "name",
    "total",
    "ended",
    "step",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_scope(parser)
    parser.add_argument("-n", "--number", type=int, default=20, help="number of runs to list (default 20)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per run, one per line")
    form.add_argument(
        "--scaling",
        nargs="+",
        metavar="RUN",
        help="instead of the list, compare speed, efficiency and memory of these runs with the one with the fewest ranks",
    )
    parser.add_argument("--csv", action="store_true", help="with --scaling: print the table as CSV")


def run(args: argparse.Namespace) -> int:
    """Print the list of runs, or the scaling table."""
    if args.scaling:
        from supervisor.cli.scaling import print_scaling

        return print_scaling([named_run(name, args.runs_dir) for name in args.scaling], as_csv=args.csv)
    if args.csv:
        return complain("runs", "--csv prints the table of --scaling RUN...: --json prints the list")

    appearance_from({}, os.environ)  # every verb that lists runs reports an error in the settings
    place = runs_dir(args.runs_dir, os.environ)
    if place.exists() and not place.is_dir():
        return complain("runs", f"{place}: not a folder")
    known = known_runs(place, os.environ, elsewhere=args.all or args.runs_dir is None)
    here = those_under(known, place)
    shown = known if args.all else here
    elsewhere = len(known) - len(here)
    if not shown:
        say(f"no run under {place}: start one with `stoker run`", file=sys.stderr)
    if elsewhere and not args.all:
        say(f"{elsewhere} in other folders: `stoker runs --all`", file=sys.stderr)
    rows = rows_of(shown[: max(args.number, 0)], os.environ)
    if args.json:
        for row in rows:
            say_json(facts_of(row))
        return 0
    # A pipe gets every column. A terminal gets the columns that fit on one line.
    listed = [texts_of(row) for row in rows]
    is_terminal = sys.stdout.isatty()
    for line in table_of(listed, shutil.get_terminal_size().columns) if is_terminal else full_lines(listed):
        say(line)
    lacked = next((row for row in rows if row.summary is not None and row.summary.again), None)
    if lacked is not None and lacked.summary is not None:
        lacked_by = f"{lacked.run.run_id} could not be restarted; with these flags it would have been:"
        say(lacked_by, printable(lacked.summary.again), file=sys.stderr)
    return 0


RATES = ("samples_per_sec", "tokens_per_sec", "step_time_s", "data_wait_s")


def _state_word(row: RunRow) -> str:
    if isinstance(row.state.condition, Finished):
        return str(row.state.condition.outcome)
    return "live" if row.live else "no keeper"


def facts_of(row: RunRow) -> dict[str, Any]:
    """Return a run's `--json` values. Times are in seconds since the epoch; unknown values are None."""
    state, attempt, now, job = row.state, row.state.attempt, row.state.progress, row.summary
    batch = attempt.shown_batch if attempt is not None else None
    measured = attempt.measured if attempt is not None else None
    verdict = attempt.verdict if attempt is not None and not attempt.ended_on_request else None
    return {
        "run": row.run.run_id,
        "name": row.given or None,
        "note": row.note or None,
        "state": _state_word(row),
        "script": job.script if job is not None else None,
        "arguments": list(job.arguments) if job is not None and job.script is not None else None,
        "attempts": len(state.attempts),
        "step": state.last_step,
        "total_steps": state.planned_steps,
        "verdict": None if verdict is None else str(verdict.failure),
        "reason": None if verdict is None else verdict.title,
        "start_again": (job.again if job is not None else "") or None,
        "recovered_from": recovered_from(state),
        "micro_batch": batch.micro_batch_per_rank if batch is not None else None,
        "accumulation": batch.accumulation_steps if batch is not None else None,
        "global_batch": batch.global_batch if batch is not None and batch.ranks_known else None,
        "measured": msgspec.to_builtins(measured) if measured is not None else None,
        **{name: getattr(now, name, None) for name in RATES},
        "memory_peak_bytes": attempt.trial.peak_bytes if attempt is not None and attempt.trial else None,
        "learning_rate": newest_rate(state, row.command) or None,
        "best_loss": state.best_loss,
        "loss_not_finite": _not_finite_of(attempt),
        "elapsed_s": state.elapsed_s(state.now(time.time()), has_keeper=row.live),
        "started": state.started_t,
        "ended": state.ended_t,
        "folder": str(row.run.root),
    }


def _not_finite_of(attempt: AttemptState | None) -> dict[str, Any] | None:
    """Return where the latest attempt's loss became NaN or inf and where it recovered, or None if it stayed finite."""
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


def texts_of(row: RunRow) -> dict[str, str]:
    """Return a run's text for each column, plus `reason`, which is shown in place of the verdict's class."""
    return {name: printable(column.text(row)) for name, column in COLUMNS.items()} | {
        "reason": printable(row.reason)
    }


def full_lines(listed: Sequence[Mapping[str, str]]) -> list[str]:
    """Return one line per run for piped output, with a fixed set of columns. `--json` has the rest."""
    lines = []
    for of in listed:
        line = f"{of['run']:34} {of['state']:10} {of['attempt']:11} {of['step']:17} {of['verdict']:{VERDICT_CELLS}} "
        name, note = of["name"], of["note"]
        lines.append(f"{line}{of['folder']}{name and f'  {name}'}{note and f'  note: {note}'}")
    return lines


def table_of(listed: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return a header and one line per run, at most `width` cells wide. The result is empty if there are no runs.

    Empty columns are omitted. Columns in `GIVES_WAY` are dropped in order until lines fit; the command fills the rest.
    """
    widest = min(VERDICT_CELLS + max(width - VERDICT_WIDER_FROM, 0) // 4, MOST_VERDICT)
    texts = {}
    for name, column in COLUMNS.items():
        most, found = column.most, [of[name] for of in listed]
        if name == "verdict":
            most, found = widest, [of["reason"] or of[name] for of in listed]
        if any(found):
            texts[name] = [_cut(text, most) for text in (column.title, *found)]
    commands = texts.pop("command", None)
    for going in ("", *GIVES_WAY):
        texts.pop(going, None)
        commands = None if going == "command" else commands
        if going == "date":
            texts["run"] = [short_id(text) for text in texts["run"]]
        elif going == "total":
            texts["step"] = [text.partition("/")[0] for text in texts["step"]]
        widths = [max(map(len, column)) for column in texts.values()]
        used = sum(widths) + len(widths) - 1
        if used + (LEAST_COMMAND + 1 if commands else 0) <= width:
            break
    lines = [" ".join(map(str.ljust, row, widths)) for row in zip(*texts.values(), strict=True)]
    if commands:
        lines = [f"{line} {text}" for line, text in zip(lines, commands, strict=True)]
    return [_cut(line.rstrip(), width) for line in lines]


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def browse(argv: list[str]) -> int:
    """Show the list of runs on a terminal until the user quits (plain `stoker`). Exit 2 for an unknown flag."""
    parser = Parser(
        prog="stoker", description="`stoker` alone on a terminal: the list of live and past runs."
    )
    add_scope(parser)
    add_appearance_flags(parser)
    args, env = parser.parse_args(argv), os.environ
    try:
        appearance = appearance_from(vars(args), env)
    except JobError as error:
        return complain("", error)
    if not has_terminal():
        return complain("", "the list of runs needs a terminal: `stoker runs` prints it")
    from supervisor.cli.open_app import adopter, continuer
    from supervisor.views.tui.app import run_tui

    place = runs_dir(args.runs_dir, env)
    run_tui(
        None,
        known=lambda: known_runs(place, env),
        scope=Scope(place, everywhere=args.all),
        adopter=adopter(env),
        continuer=continuer(env),
        appearance=appearance,
    )
    return 0
