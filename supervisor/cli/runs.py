"""List known runs, newest first: state, steps, verdict, where. With --scaling: how the named runs scale."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from supervisor.run.paths import RunPaths
    from supervisor.run.state import AttemptState, RunState
    from supervisor.views.model.run_list import RunRow

VERDICT_CELLS = 20  # cuda_oom→healthy
# On a wider terminal, an error's own message gets a quarter of the extra width, up to this many cells.
VERDICT_WIDER_FROM = 80
MOST_VERDICT = 56
LEAST_COMMAND = 12  # cells; with fewer, no command is printed
SHOWN = (
    "run",
    "state",
    "ended",
    "attempt",
    "step",
    "verdict",
    "name",
    "note",
    "batch",
    "rate",
    "folder",
    "command",
)
# Columns dropped on a narrow terminal: `date` is that in the id, `total` that of the steps.
GIVES_WAY = (
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
)
MOST_CELLS = {"name": 24, "note": 24, "batch": 12, "rate": 12}


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
    from supervisor.run.index import known_runs, runs_dir, those_under
    from supervisor.views.model.run_list import rows_of

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
    from supervisor.run.state import HeldOpen
    from supervisor.text.decode import printable
    from supervisor.views.model.run_list import batch_of, newest_rate, watched_word

    state, attempt = row.state, row.state.attempt
    word = watched_word(state, live=row.live) or _state_word(row)
    if isinstance(state.condition, HeldOpen) and row.live:
        word = f"failed, waiting{_cost(row.run)}"
    elif state.is_over and state.failed_for is not None:
        word = "failed, stopped"
    step = "-" if state.last_step is None else str(state.last_step)
    step += "+" if row.is_cut else ""
    total = f"/{state.planned_steps}" if state.planned_steps else ""
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
        _ended_text(state),
        row.note,
        row.reason,
        row.summary.again if row.summary is not None else "",
    )
    return Columns(*map(printable, cells))


def _ended_text(state: RunState) -> str:
    """When it ended, or when the attempt failed after which it waits for a person; empty during training."""
    from supervisor.run.state import Finished, HeldOpen
    from supervisor.views.format import day_and_time

    ended_t = state.ended_t if isinstance(state.condition, Finished) else None
    if isinstance(state.condition, HeldOpen) and state.attempt is not None:
        ended_t = state.attempt.ended_t
    return day_and_time(ended_t, time.time()) if ended_t is not None else ""


def _state_word(row: RunRow) -> str:
    from supervisor.run.state import Finished

    if isinstance(row.state.condition, Finished):
        return str(row.state.condition.outcome)
    return "live" if row.live else "no keeper"


def facts_of(row: RunRow) -> dict[str, Any]:
    """The `--json` facts of a run: times in seconds since the epoch, None for unknown ones."""
    import msgspec

    from supervisor.views.model.run_list import newest_rate, recovered_from

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


def _cost(run: RunPaths) -> str:
    """The memory of a waiting process on this machine; empty if it runs elsewhere."""
    import psutil

    from supervisor.run.ownership import holder_here

    holder = holder_here(run.node().lock)
    if holder is None:
        return ""
    try:
        return f" ({psutil.Process(holder.pid).memory_info().rss / 1e6:.0f} MB)"
    except psutil.Error:
        return ""


def lines_of(runs: Sequence[Columns], width: int | None) -> list[str]:
    """One line per run, all in the same columns, of at most `width` cells; None: in full, as for a pipe (`--json` has the rest).

    On a terminal, empty columns are omitted. Those of `GIVES_WAY` are dropped in order until the lines fit;
    the command, the last one, takes the rest.
    """
    from supervisor.views.format import short_id

    if width is None:
        return [
            f"{of.run:34} {of.state:10} {of.attempt:11} {of.step:17} {of.verdict:{VERDICT_CELLS}} "
            f"{of.folder}{of.name and f'  {of.name}'}{of.note and f'  note: {of.note}'}"
            for of in runs
        ]
    most = MOST_CELLS | {
        "verdict": min(VERDICT_CELLS + max(width - VERDICT_WIDER_FROM, 0) // 4, MOST_VERDICT)
    }
    cells = {
        name: [_cut(getattr(of, name), most.get(name, 999)) for of in runs]
        for name in SHOWN
        if any(getattr(of, name) for of in runs if of is not HEADER)
    }
    if "verdict" in cells:
        texts = [of.verdict if of is HEADER else of.reason or of.verdict for of in runs]
        cells["verdict"] = [_cut(text, most["verdict"]) for text in texts]
    for going in ("", *GIVES_WAY):
        cells.pop(going, None)
        if going == "date":
            cells["run"] = [short_id(text) for text in cells["run"]]
        elif going == "total":
            cells["step"] = [text.partition("/")[0] for text in cells["step"]]
        columns = [_column(texts) for name, texts in cells.items() if name != "command"]
        lines = [" ".join(row).rstrip() for row in zip(*columns, strict=True)]
        used = max(map(len, lines), default=0)
        room = width - used - 1
        if used <= width and ("command" not in cells or room >= LEAST_COMMAND):
            break
    if "command" in cells and room >= LEAST_COMMAND:
        lines = [
            f"{line:{used}} {_cut(text, room)}".rstrip()
            for line, text in zip(lines, cells["command"], strict=True)
        ]
    return [_cut(line, width) for line in lines]


def _column(texts: Sequence[str]) -> list[str]:
    widest = max(map(len, texts))
    return [f"{text:{widest}}" for text in texts]


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def browse(argv: list[str]) -> int:
    """`stoker` alone on a terminal: open the list of runs until the person quits. Exit code 2: an unknown flag."""
    from supervisor.job.errors import JobError
    from supervisor.run.index import known_runs, runs_dir

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
    from supervisor.views.model.run_list import Scope
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
