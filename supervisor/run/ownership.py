"""Who holds a run, who owns its directory, and whether the directory is still where it was created.

A keeper holds ``keeper.lock`` with flock, which the kernel releases whenever the holder dies. The pid and start time in
the file are for display, and distinguish a live keeper from a recycled pid on another host.

A folder can claim anything about itself: any user can write or copy one, or put one where others will read it. Reading
a folder requires no trust. A request is written only if a live keeper is at the path in run.json. A new keeper is
started only in a folder that belongs to its user from top to bottom. Reasons to refuse are returned as data, one line
each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import RUN_SCHEMA, NodePaths, RunPaths, private

if TYPE_CHECKING:  # they load the whole schema, which is not needed to find a run
    from supervisor.run.control import RequestArgs
    from supervisor.run.events import RequestKind


TRIES = 5
TRY_AGAIN_S = 0.03


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The last process to take the lock. `start_time` is in seconds since boot."""

    pid: int
    start_time: float
    host: str


class LockTaken(Exception):  # noqa: N818 - a state of affairs, not an error
    """Another keeper is alive."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__(
            f"another keeper lives (pid {holder.pid} on {holder.host})" if holder else "another keeper lives"
        )


class KeeperLock:
    """A lock held from construction until `release`.

    Args:
        path: the lock file.
        start_time: when this process started, in seconds since boot.

    Raises:
        LockTaken: another keeper holds the lock.
        OSError: the folder cannot be written.
    """

    def __init__(self, path: Path, *, start_time: float) -> None:
        self._fd = private(path, os.O_RDWR | os.O_CREAT)
        # `keeper_is_alive` holds the lock for some microseconds. A keeper holds it longer than these tries take.
        for tries_left in reversed(range(TRIES)):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    self.release()
                    raise LockTaken(read_holder(path)) from None
                time.sleep(TRY_AGAIN_S)
        holder = Holder(pid=os.getpid(), start_time=start_time, host=socket.gethostname())
        with contextlib.suppress(OSError):  # full disk: hold the lock without a name in it
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(holder) + b"\n", 0)

    def release(self) -> None:
        """Release the lock. The file stays, because removing it would race with the next keeper."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def show_life(self) -> None:
        """Touch the file to show hosts beyond the reach of flock that a keeper is alive."""
        with contextlib.suppress(OSError):
            os.utime(self._fd)


def read_holder(path: Path) -> Holder | None:
    """Return the last process that wrote the lock file, dead or alive."""
    return decoded_file(path, Holder)


def holder_here(path: Path) -> Holder | None:
    """Return the last process that wrote the lock file, or None if that was on another host."""
    holder = read_holder(path)
    return holder if holder is not None and holder.host == socket.gethostname() else None


def keeper_is_alive(path: Path) -> bool:
    """Check whether a keeper holds the lock (on this host, or wherever the filesystem's flock reaches).

    A copy made with hard links shares the lock with its original, so use `has_keeper` to ask about a run.
    """
    try:
        # The path may be a pipe, or a link to another run's lock.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


# -- who owns the folder ----------------------------------------------------------------------------

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0
NO_PATH = "run.json does not say where the run was started (an older stoker wrote it): start again with `stoker run`"


class NotRequested(Exception):  # noqa: N818 - a state of affairs, not an error
    """A request was not sent. The message is a single line."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Reasons not to act on a run (`refusals`), what the user should know (`warnings`) and what acting would do (`actions`), one line each."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run directory is now, and where run.json says it was created (None if not recorded).

    `schema` is run.json's schema version.
    """

    real: str
    recorded: str | None
    schema: int = RUN_SCHEMA

    @property
    def is_copy(self) -> bool:
        """Whether this folder was copied or moved from where the run was started."""
        return self.recorded is not None and self.real != self.recorded

    @property
    def refusal(self) -> str:
        """Why a copy is read-only and accepts neither requests nor a keeper, or "" for the original folder."""
        if not self.is_copy:
            return ""
        if os.path.lexists(str(self.recorded)):
            return f"this folder is a copy: the run itself lies in {self.recorded!s}"
        return f"this folder was moved or copied from {self.recorded!s}: move it back, or start again with `stoker run`"


class _Recorded(msgspec.Struct, frozen=True):
    path: str | None = None
    schema: int = RUN_SCHEMA


def newer_notice(place: Place, journal_version: int | None) -> str:
    """Return the notice for a run written by a newer stoker, which is read-only here, or "" for any other run.

    `journal_version` is the highest schema version among its events, or None if this version can read them all.
    """
    found = f"run.json has schema {place.schema}" if place.schema > RUN_SCHEMA else ""
    if journal_version is not None:
        found = f"its journal has events of version {journal_version}"
    return f"a newer stoker wrote this run ({found}): read-only: update stoker to act on it" if found else ""


def newer_refusal(run: RunPaths, place: Place) -> str:
    """Read the journal and return `newer_notice` as the reason not to send a request or start a keeper."""
    from supervisor.run.journal import read_state

    return newer_notice(place, read_state(run.node().journal).newer_version)


def place_of(run: RunPaths) -> Place:
    """Return where a run is and where it was created. This is cheap, because only the path in run.json is decoded."""
    real = os.path.realpath(run.root)
    record = decoded_file(Path(real, run.run_json.name), _Recorded)
    return Place(real, None) if record is None else Place(real, record.path, record.schema)


def has_keeper(run: RunPaths, node: int = 0) -> bool:
    """Check whether a live keeper supervises the run in this folder.

    A copy made with hard links shares the original's lock, but the original's keeper does not supervise the copy.
    """
    return keeper_is_alive(run.node(node).lock) and not place_of(run).is_copy


def ask(
    run: RunPaths,
    kind: RequestKind,
    *,
    if_attempt: int | None = None,
    args: RequestArgs | None = None,
) -> str:
    """Send a request to a run's keeper and return its id. Views and commands reach a keeper only through this function.

    Raises:
        NotRequested: no live keeper would receive the request.
        OSError: the folder is gone, is not writable by this user, or is a link.
    """
    place = place_of(run)
    if place.is_copy:
        raise NotRequested(place.refusal)
    if newer := newer_refusal(run, place):
        raise NotRequested(newer)
    if not keeper_is_alive(run.node().lock):
        raise NotRequested("the supervisor process is gone: nobody would do it")
    from supervisor.run import control

    return control.send(RunPaths(Path(place.real)).control, kind, if_attempt=if_attempt, args=args)


def check_folder(run: RunPaths) -> Offer:
    """Check whether a keeper may be started in this folder: it was not moved, and only its owner can write to it."""
    place = place_of(run)
    if place.is_copy:
        return Offer((place.refusal,))
    real = Path(place.real)
    refusals, warnings = _above(real)
    no_path = NO_PATH if place.recorded is None else ""
    if against := _first_against(real) or newer_refusal(run, place) or no_path:
        refusals.insert(0, against)
    return Offer(tuple(refusals), tuple(warnings))


def _first_against(root: Path) -> str:
    """Return why the first file that the user does not own is refused, or "" if the user owns all of the run's files."""
    try:
        found = (_against(path, is_folder=is_folder) for path, is_folder in ((root, True), *_parts(root)))
        return next(filter(None, found), "")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _parts(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield every path that a keeper reads or writes, and whether it is a folder."""
    run = RunPaths(root)
    yield run.run_json, False
    yield from ((path, True) for path in (run.control, run.artifacts, root / "nodes") if _is_there(path))
    for number in run.nodes():
        # Another node's keeper may be about to start.
        yield from _node_parts(run.node(number), has_journal=number == 0)


def _node_parts(node: NodePaths, *, has_journal: bool) -> Iterator[tuple[Path, bool]]:
    yield node.root, True
    if has_journal or _is_there(node.journal):
        yield node.journal, False
    told = (node.snapshot, node.lock, node.log, node.order, node.report)
    yield from ((path, False) for path in told if _is_there(path))
    yield from ((path, True) for path in (node.series, node.orders) if _is_there(path))
    for folder in (node.root / "attempts", node.root / "probes"):
        if not _is_there(folder):
            continue
        yield folder, True
        named = folder.iterdir() if folder.is_dir() else ()
        for one in sorted(path for path in named if path.name.isdecimal()):
            yield one, True
            yield from ((path, False) for path in (one / "pid", one / "exit") if _is_there(path))
            if folder.name == "probes":
                yield from _node_parts(NodePaths(one), has_journal=False)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _against(path: Path, *, is_folder: bool) -> str:
    """Return the reason to refuse a file or folder, or "" if there is none."""
    try:
        info = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if stat.S_ISLNK(info.st_mode):
        return f"{path} is a symbolic link"
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(info.st_mode):
        return f"{path} is no {'folder' if is_folder else 'regular file'}"
    if info.st_uid != os.geteuid():
        return f"{path} belongs to uid {info.st_uid}, not to you (uid {os.geteuid()})"
    if info.st_mode & OTHERS_MAY_WRITE:
        return f"{path} may be written by others than you (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""


def _above(root: Path) -> tuple[list[str], list[str]]:
    """Find parent folders in which other users could replace the run. Return refusals, and at most one warning."""
    refusals: list[str] = []
    warnings: list[str] = []
    for folder in root.parents:
        try:
            info = folder.stat()
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror}")
            continue
        sticky = bool(info.st_mode & stat.S_ISVTX)  # users can only move their own files in it
        if info.st_mode & stat.S_IWOTH and not sticky:
            mode = stat.S_IMODE(info.st_mode)
            refusals.append(f"everybody may exchange what lies in {folder} (mode {mode:04o})")
        elif info.st_mode & stat.S_IWGRP and not sticky:
            warnings.append(f"the group of {folder} may exchange what lies in it")
        elif info.st_uid not in {ROOT, os.geteuid()}:
            warnings.append(f"uid {info.st_uid} owns {folder} and may exchange what lies in it")
    return refusals, warnings[:1]
