"""Delete old runs beyond what ``--keep`` or ``[runs] keep`` allows, but never a live one or one that is still needed."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from supervisor.cli.common import add_runs_dir, complain, say, says_yes, settings_table, user_settings
from supervisor.job.errors import JobError
from supervisor.job.memory_fit import size as size_words
from supervisor.run.index import known_runs, runs_dir
from supervisor.run.ownership import check_folder
from supervisor.run.paths import RECORD, RunPaths
from supervisor.run.regular import read_regular
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.trash import TRASH, StillLives, empty, throw_away, why_alive
from supervisor.views.model.run_list import RunRow, rows_of

# The first bytes of zip, gzip, tar and safetensors, and bytes that start no UTF-8 character: pickle, HDF5, numpy.
_PACKED = re.compile(rb"PK\x03\x04|\x1f\x8b|[\x80-\xbf]|.{4}\0{4}\{|.{257}ustar", re.DOTALL)
_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0, "mb": 1e6, "gb": 1e9, "tb": 1e12, "": 1.0}
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)(h|d|w|mb|gb|tb|)", re.IGNORECASE)


class OldRun(NamedTuple):
    """A run beyond the limits. `reason` says why, `kept` why it is kept anyway ("" if deleted); `size` is its bytes on disk."""

    row: RunRow
    size: int
    reason: str
    kept: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    how = "how long, how many or how much to keep, as in '90d 500 50GB' (default: keep in [runs] of stoker.toml)"
    parser.add_argument("--keep", metavar="LIMITS", help=how)
    parser.add_argument(
        "--with-checkpoints", action="store_true", help="also delete runs with checkpoints or other files"
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument("--now", action="store_true", help="delete permanently: empty the trash at once")
    add_runs_dir(parser)


def run(args: argparse.Namespace) -> int:
    """List what will be deleted and why, then delete it. Exit 1 if a deletion failed, 2 if limits are missing or invalid."""
    place, own = runs_dir(args.runs_dir, os.environ), user_settings(os.environ)
    here = settings_table(Path("stoker.toml"), "runs", whole=False)
    limits = limits_of(args.keep or {**settings_table(own, "runs", whole=True), **here}.get("keep", ""))
    rows = rows_of(known_runs(place, os.environ, elsewhere=False), os.environ)
    old = old_runs(rows, limits, time.time(), with_checkpoints=args.with_checkpoints)
    going = [each for each in old if not each.kept]
    for each in old:
        what = f"stays, {each.reason}: {each.kept}" if each.kept else each.reason
        say(f"{each.row.run.run_id:34} {size_words(each.size):>9}  {what}")
    say(f"{len(going)} of {len(rows)} runs go, {size_words(sum(each.size for each in going))}")
    code = 0
    if not (args.yes or (going and sys.stdin.isatty() and says_yes(f"Delete {len(going)} runs?"))):
        return code
    if not args.yes:  # the user may have taken an hour to answer
        rows = rows_of(known_runs(place, os.environ, elsewhere=False), os.environ)
        old = old_runs(rows, limits, time.time(), with_checkpoints=args.with_checkpoints)
    now = {each.row.run: each.kept for each in old}
    for run in (each.row.run for each in going):
        kept = now.get(run, "no longer beyond what is kept")
        try:
            if kept := kept or _why_kept(run, with_checkpoints=args.with_checkpoints):
                say(f"{run.run_id} stays: {kept}")
            else:
                throw_away(run, in_place=args.now)
        except (OSError, StillLives) as error:
            code = complain("gc", f"{run.run_id}: {error}", 1)
    empty(place, math.inf if args.now else None)
    if going and not args.now:
        say(f"what was deleted lies in {place / TRASH} for a week; --now deletes what is there at once")
    return code


def limits_of(text: str) -> dict[str, float]:
    """Parse limits on the age (in seconds), number and size (in bytes) of kept runs, such as ``90d 500 50GB``.

    Raises:
        JobError: there are no limits, or one is invalid.
    """
    words, found = text.replace(",", " ").split(), dict[str, float]()
    for word in words:
        if (match := _LIMIT.fullmatch(word)) is None:
            raise JobError(f"keep: {word!r} is no age (90d), number of runs (500) or size (50GB)")
        unit = match[2].lower()
        found["size" if unit.endswith("b") else "age" if unit else "number"] = float(match[1]) * _UNITS[unit]
    if not found:
        raise JobError("nothing says what to keep: --keep '90d 500 50GB', or keep in [runs] of stoker.toml")
    return found


def old_runs(
    rows: Sequence[RunRow], limits: Mapping[str, float], now: float, *, with_checkpoints: bool
) -> list[OldRun]:
    """Return a folder's runs beyond the limits, newest first. A run is kept if another kept run was resumed from it."""
    most_s, most, most_bytes = (limits.get(kind, math.inf) for kind in ("age", "number", "size"))
    old, total = dict[str, OldRun](), 0
    for at, row in enumerate(rows):
        age_s = now - (row.state.ended_t or row.state.last_t or now)
        size = sum(taken for *_, taken in _entries(row.run))
        total += size
        reason = f"the newest take {size_words(most_bytes)}" if total > most_bytes else ""
        reason = f"not of the newest {most:.0f}" if at >= most else reason
        if reason := f"{age_s / _UNITS['d']:.0f} days old" if age_s > most_s else reason:
            kept = why_alive(row.run, row.state) or _why_kept(row.run, with_checkpoints=with_checkpoints)
            old[row.run.run_id] = OldRun(row, size, reason, kept)
    staying = [row for row in rows if (each := old.get(row.run.run_id)) is None or each.kept]
    while staying:
        row = staying.pop()
        for each in [old[name] for name in _names(row) & old.keys() if not old[name].kept]:
            old[each.row.run.run_id] = each._replace(kept=f"{row.run.run_id} resumed from it")
            staying.append(each.row)
    return list(old.values())


def _why_kept(run: RunPaths, *, with_checkpoints: bool) -> str:
    """Return why an old finished run is kept (its folder is not ours or has files from elsewhere), or "" if it can be deleted."""
    if (refusals := check_folder(run).refusals) or with_checkpoints:
        return next(iter(refusals), "")
    try:
        for path, mode, _ in _entries(run):
            name = str(path.relative_to(run.root))
            if not (RECORD.fullmatch(name) or (stat.S_ISDIR(mode) and os.access(path, os.R_OK | os.X_OK))):
                return f"it holds {name}, which is no record of stoker's: --with-checkpoints"
            if stat.S_ISREG(mode) and _PACKED.match(read_regular(path, 262)):
                return f"it holds {name}, which is binary by its first bytes: --with-checkpoints"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _entries(run: RunPaths) -> Iterator[tuple[Path, int, int]]:
    """Yield each readable entry in a run's folder with its mode and bytes on disk. Links are not followed."""
    for folder, folders, names in os.walk(run.root):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                info = os.lstat(path := Path(folder, name))
                yield path, info.st_mode, info.st_blocks * 512


def _names(row: RunRow) -> set[str]:
    """Return every path component in the arguments of a run's job and attempts, including the targets of links."""
    words = [word for each in row.state.attempts for word in (each.resume or "", *each.argv)]
    with contextlib.suppress(BadRunFile):
        job = read_run_file(row.run.run_json).job
        words += [*job.entry_args, *(value for _, value in job.env)]
        words += [os.path.realpath(os.path.join(job.cwd, word.rpartition("=")[2])) for word in words]
    return set(re.split(r"[/=:,]", "/".join(words)))
