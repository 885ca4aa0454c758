"""Before an attempt resumes, the keeper copies its checkpoint, so that the attempt cannot overwrite it.

A script that fails to resume begins at step 0 and overwrites its checkpoints. `torch.save` truncates the file in place, so a hard link
would lose its bytes too. The copy lies in the attempt's own folder, hidden and without the name of a checkpoint, because a script might
search any other folder for its newest one. It shares its blocks with the original if the file system supports reflinks. Otherwise it is a
real copy if twice its size is free; if not, the journal says why there is none. A missing copy never blocks a launch.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import IO, Final

from supervisor.job.errors import JobError
from supervisor.job.memory_fit import size
from supervisor.keeper.base.background import Background, within
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.planning.launch_plans import next_resume_point
from supervisor.keeper.planning.resume_points import drop_copies
from supervisor.run import events as ev
from supervisor.run.next_job import next_job
from supervisor.run.paths import make_private
from supervisor.run.records import Decision, Precondition
from supervisor.run.state import Backoff, RunState
from supervisor.sources.checkpoint_layouts import files_of

KEPT_NAME: Final = ".stoker-kept-"
FICLONE: Final = 0x40049409
"""The Linux ioctl that makes a file share the blocks of another: Btrfs, XFS, bcachefs, and overlays on these."""
WAIT_S: Final = 0.5
"""How long the keeper's loop waits for a copy: a reflink takes milliseconds."""
MOST_S: Final = 600.0
"""A longer copy is abandoned: 1 TB at 2 GB/s takes 500 s, and nothing trains meanwhile."""
CHUNK_BYTES: Final = 16 << 20
REMOVE_S: Final = 2.0


class KeptCopies:
    """Makes the copies in a thread of their own, and removes them. Only the keeper's thread calls this."""

    def __init__(self, context: RunContext) -> None:
        self._context, self._ledger, self._clock = context, context.ledger, context.clock
        self._copier: Background[ev.CheckpointKept | None] = Background("stoker-copy")
        self._given_up = threading.Event()
        self._began = 0.0
        self._done_for: tuple[int, Decision] | None = None

    def ready(self, backoff: Backoff) -> bool:
        """Whether the next attempt may launch: its checkpoint has a copy, or will have none. Poll until it is True."""
        state = self._ledger.state
        number = len(state.attempts) + 1
        if self._done_for == (number, backoff.decision):
            return True
        if not self._copier.busy:
            self._given_up.clear()
            self._began = self._clock.mono()
            self._copier.start(lambda: self._keep(state, number))
        kept = self._copier.poll(WAIT_S)
        if kept is None and self._copier.working:
            if self._clock.mono() - self._began > MOST_S:
                self._given_up.set()
            if state.waiting is None:
                text = "copying the checkpoint before the next attempt resumes from it"
                now, disk = self._clock.wall(), Precondition.DISK
                self._ledger.emit(ev.WaitingFor(t=now, attempt=number - 1, precondition=disk, text=text))
            return False
        self._done_for = number, backoff.decision
        if kept is not None:
            self._ledger.emit(kept)
        return True

    def release(self, *, over: bool = False) -> None:
        """Remove copies that the journal no longer mentions, and changed copies once a newer checkpoint exists or the run is `over`."""
        state, folder = self._ledger.state, self._context.node.attempt(1).root.parent
        drop_copies(state, over=over)
        kept = {one.copy for one in state.kept}
        for copy in folder.glob(f"*/{KEPT_NAME}*"):
            if str(copy) not in kept:
                within(REMOVE_S, partial(_remove, copy), "stoker-remove")

    def close(self) -> None:
        """Abandon the copy in progress."""
        self._given_up.set()
        self._copier.close(REMOVE_S)

    def _keep(self, state: RunState, number: int) -> ev.CheckpointKept | None:
        """Runs in the copier's thread. None: nothing to resume from, or an earlier attempt left a copy."""
        context, now = self._context, next_job(self._context.record.job, state)
        try:
            saved = next_resume_point(context.record, state, context.run, now, context.env).checkpoint
        except JobError:  # the launch reports it
            return None
        if saved is None:
            return None
        path, step = saved.path, saved.step
        if any((k.path, k.step) == (path, step) and os.path.exists(k.copy) for k in state.kept):
            return None
        target = context.node.attempt(number).root / f"{KEPT_NAME}{step}"
        why = self._copied(saved, target)
        if why:
            _remove(target)
        t, copy = self._clock.wall(), "" if why else str(target)
        return ev.CheckpointKept(t=t, attempt=number, step=step, path=path, copy=copy, why=why)

    def _copied(self, saved: ev.CheckpointCommitted, target: Path) -> str:
        """Copy the checkpoint. Returns why that failed; empty: it is copied."""
        try:
            files = files_of(saved.path, saved.layout, saved.number)
            needed = sum(os.stat(file).st_size for file in files.values())
            make_private(target.parent)
            _remove(target)
            disk = os.statvfs(target.parent)
            has_room = disk.f_bavail * disk.f_frsize >= 2 * needed
            for name, file in files.items():
                copy = target / name if name else target
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(file, "rb") as source, open(copy, "xb") as made:
                    if not _shares_blocks(source, made):
                        if not has_room:
                            return f"{target.parent} has less free space than twice its {size(needed)}"
                        while chunk := source.read(CHUNK_BYTES):
                            if self._given_up.is_set():
                                return f"copying its {size(needed)} takes longer than {MOST_S:.0f} s"
                            made.write(chunk)
                shutil.copystat(file, copy)
        except OSError as error:
            return error.strerror or str(error)
        return "" if files else "its files are gone"


def _shares_blocks(source: IO[bytes], made: IO[bytes]) -> bool:
    """Make a file share the blocks of another; False if the file system cannot."""
    try:
        fcntl.ioctl(made.fileno(), FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
