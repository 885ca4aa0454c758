"""List known runs, newest first: state, steps, verdict, where. With --scaling: how the named runs scale."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
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

# The columns in their order, the most cells of each on a terminal; `command` comes last and takes the rest.
VERDICT_CELLS = 20  # cuda_oom→healthy
SHOWN = {
    "run": 999, "state": 999, "ended": 999, "attempt": 999, "step": 999, "verdict": VERDICT_CELLS, "name": 24, "note": 24,
    "batch": 12, "rate": 12, "folder": 999, "command": 999,
}  # fmt: skip
# On a wider terminal, an error's own message gets a quarter of the extra width, up to this many cells.
VERDICT_WIDER_FROM = 80
MOST_VERDICT = 56
LEAST_COMMAND = 12  # cells; with fewer, no command is printed
# What is dropped on a narrow terminal, one after another: `date` is that in the id, `total` that of the steps.
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
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object a run on a line of its own")
    form.add_argument(
        "--scaling",
        nargs="+",
        metavar="RUN",
        help="instead of the list: speed, efficiency and memory of these runs, against the one with the fewest ranks",
    )
    parser.add_argument("--csv", action="store_true", help="with --scaling: the table as CSV")


def run(args: argparse.Namespace) -> int:
    """Print the list, or the table of how runs scale."""
    if args.scaling:
        from supervisor.cli.scaling import print_scaling

        return print_scaling([named_run(name, args.runs_dir) for name in args.scaling], as_csv=args.csv)
    if args.csv:
        return complain("runs", "--csv prints the table of --scaling RUN...: --json prints the list")

    appearance_from({}, os.environ)  # every verb that lists runs reports a fault in the settings
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
    listed = [columns_of(row) for row in rows]
    # A pipe gets everything; a terminal what fits on one line.
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
RATES = ("samples_per_sec", "tokens_per_sec", "step_time_s", "data_wait_s")


def columns_of(row: RunRow) -> Columns:
    """A run's line in the list."""
    state, attempt = row.state, row.state.attempt
    is_held = isinstance(state.condition, HeldOpen)
    word = watched_word(state, live=row.live) or _state_word(row)
    if is_held and row.live:
        word = "failed, waiting"
    elif state.is_over and state.failed_for is not None:
        word = "failed, stopped"
    step = "-" if state.last_step is None else str(state.last_step)
    step += "+" if row.is_cut else ""
    total = f"/{state.planned_steps}" if state.planned_steps else ""
    ended_t = state.ended_t if isinstance(state.condition, Finished) else None
    if is_held and attempt is not None:
        ended_t = attempt.ended_t
    cells = (
        row.run.run_id,
        word,
        f"attempt {len(state.attempts)}",
        f"step {step}{total}",
        row.history or "-",
        str(row.run.root),
        row.given,
        batch_of(attempt.shown_batch if attempt is not None else None),
        newest_rate(state, row.command),
        " ".join(row.command),
        day_and_time(ended_t, time.time()) if ended_t is not None else "",
        row.note,
        row.reason,
        row.summary.again if row.summary is not None else "",
    )
    return Columns(*map(printable, cells))


def _state_word(row: RunRow) -> str:
    if isinstance(row.state.condition, Finished):
        return str(row.state.condition.outcome)
    return "live" if row.live else "no keeper"


def facts_of(row: RunRow) -> dict[str, Any]:
    """The `--json` facts of a run: times in seconds since the epoch, None for unknown ones."""
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
    """Where the newest attempt's loss became nan or inf, and where it was finite again; None if it did not."""
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


def lines_of(runs: Sequence[Columns], width: int | None) -> list[str]:
    """One line per run, all in the same columns, of at most `width` cells; None: in full, as for a pipe (`--json` has the rest).

    On a terminal, empty columns are omitted. Those of `GIVES_WAY` are dropped in order until the lines fit;
    the command, the last one, takes the rest.
    """
    if width is None:
        return [
            f"{of.run:34} {of.state:10} {of.attempt:11} {of.step:17} {of.verdict:{VERDICT_CELLS}} "
            f"{of.folder}{of.name and f'  {of.name}'}{of.note and f'  note: {of.note}'}"
            for of in runs
        ]
    most = SHOWN | {"verdict": min(VERDICT_CELLS + max(width - VERDICT_WIDER_FROM, 0) // 4, MOST_VERDICT)}
    texts = {
        name: [_cut(getattr(of, name), most[name]) for of in runs]
        for name in SHOWN
        if any(getattr(of, name) for of in runs if of is not HEADER)
    }
    if "verdict" in texts:
        texts["verdict"] = [_cut(of.reason or of.verdict, most["verdict"]) for of in runs]
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
    rows = zip(*texts.values(), strict=True)
    lines = [" ".join(map(str.ljust, row, widths)) for row in rows]
    if commands:
        lines = [f"{line} {text}" for line, text in zip(lines, commands, strict=True)]
    return [_cut(line.rstrip(), width) for line in lines]


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def browse(argv: list[str]) -> int:
    """`stoker` alone on a terminal: open the list of runs until the person quits. Exit code 2: an unknown flag."""
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
    from supervisor.cli.open_app import adopter, continuer, kept_file
    from supervisor.views.tui.app import run_tui

    place = runs_dir(args.runs_dir, env)
    run_tui(
        None,
        known=lambda: known_runs(place, env),
        scope=Scope(place, everywhere=args.all),
        adopter=adopter(env),
        continuer=continuer(env),
        appearance=appearance,
        keep=kept_file(env),
    )
    return 0
