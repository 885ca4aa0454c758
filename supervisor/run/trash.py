"""Deletes a run in a way that can be undone, by moving it to ``<runs>/.trash/``.

The run is removed for good when another run is deleted at least a week later.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

from supervisor.run.journal import WAITS_FOR_SPACE, read_state
from supervisor.run.ownership import has_keeper
from supervisor.run.paths import THROWN, RunPaths, is_run_directory
from supervisor.run.state import RunState

TRASH = ".trash"
KEPT_S = 7 * 86_400.0


class StillLives(ValueError):  # noqa: N818 - a state of affairs, not an error
    """The run may still have live processes. The message is a single line."""


def why_alive(run: RunPaths, state: RunState) -> str:
    """Explain in one line why a run may still have live processes, or return "" if it has none."""
    if any(has_keeper(run, node) for node in run.nodes()):
        return f"{run.run_id} has a live supervisor process: stop it first"
    if state.mode == "launched" and state.attempts and not state.is_over:
        return f"{run.run_id} has no supervisor process, but its ranks may live: open it, A takes it over, then stop it"
    return ""


def throw_away(run: RunPaths, *, in_place: bool = False) -> RunPaths:
    """Move a run to the trash next to it and return its new path. If the disk is too full, `in_place` removes it permanently.

    Raises:
        StillLives: a keeper holds the run, or its ranks may still be running without one.
        OSError: the run cannot be moved, for example because another user owns its folder.
    """
    if why := why_alive(run, read_state(run.node().journal)):
        raise StillLives(why)
    empty(run.root.parent)  # here, because listing runs must not remove anything
    trash = run.root.parent / TRASH
    if trash.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(trash))  # a link
    try:
        trash.mkdir(mode=0o700, exist_ok=True)
        (run.root / THROWN).touch()
        return RunPaths(run.root.rename(trash / run.run_id))
    except OSError as error:
        if not in_place or error.errno not in WAITS_FOR_SPACE:
            raise
        shutil.rmtree(run.root)
        return run


def bring_back(thrown: RunPaths) -> RunPaths:
    """Undo `throw_away`.

    Raises:
        OSError: the run is gone from the trash, or its old name is taken.
    """
    target = thrown.root.parent.parent / thrown.run_id
    if target.exists():
        raise FileExistsError(17, "a run of this name is there again", str(target))
    thrown.root.rename(target)
    (target / THROWN).unlink(missing_ok=True)
    return RunPaths(target)


def empty(runs: Path, now: float | None = None) -> int:
    """Remove runs that were deleted more than a week ago and return how many were removed. Only run directories are touched."""
    now = time.time() if now is None else now
    count = 0
    try:
        found = [] if (runs / TRASH).is_symlink() else list((runs / TRASH).iterdir())
    except OSError:
        return 0
    for path in found:
        try:
            old = now - (path / THROWN).stat().st_mtime > KEPT_S
        except OSError:
            continue  # without stoker's mark, so not stoker's to remove
        if old and not path.is_symlink() and is_run_directory(path):
            shutil.rmtree(path, ignore_errors=True)
            count += 1
    return count
