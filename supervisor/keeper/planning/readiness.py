"""Checks what a launch must wait for: free GPU memory, a free port, disk space, a checkpoint copy, and then its rendezvous.

The checks run in their own thread. A driver whose GPU just failed, or an unreachable file server, may never answer, and the
keeper must still react to a stop.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from supervisor.job.errors import JobError
from supervisor.job.launch.plan import ENDPOINT_PORT
from supervisor.job.memory_fit import size
from supervisor.job.spec import JobSpec
from supervisor.keeper.base.background import Background, within
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.planning.resume_points import drop_copies, resume_point
from supervisor.preflight.meeting import CONNECT_S, Failed, Way, meeting_point, why_not
from supervisor.preflight.network import is_free, port_holder
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import CheckpointCommitted
from supervisor.run.next_job import next_job
from supervisor.run.node_files import Order
from supervisor.run.paths import NodePaths, make_private
from supervisor.run.records import Decision, Precondition
from supervisor.run.series import GPU, at_first
from supervisor.run.state import Backoff, RunState
from supervisor.sources.checkpoint_layouts import files_of
from supervisor.sources.gpu import GpuSample, survey_gpus, visible_devices
from supervisor.sources.machine import disk_fill

POLL_S = 0.25
LOOK_S = 0.5
"""Seconds the loop waits for an answer. NVML and the disk normally answer within milliseconds."""
CLOSE_S = 2.0
# Driver contexts of some 100 MiB come and go. NVRx uses the same figure (nvidia-resiliency-ext).
SLACK_BYTES = 512 << 20
# Enough for hours of logs and series. The size of a checkpoint is added if known.
ROOM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Missing:
    """A condition that is not met yet. If `fatal`, launching without it is pointless; if not, launch after the wait."""

    precondition: Precondition
    text: str
    fatal: bool = False


class ReadinessCheck:
    """Used only by the keeper's thread while a launch is due. Keeps no state that an adopting keeper needs.

    Attributes:
        refusal: why a launch is pointless, once the wait is over; empty before that.
    """

    def __init__(
        self,
        job: JobSpec,
        node: NodePaths,
        env: Mapping[str, str],
        clock: Clock,
        emit: Callable[[ev.Event], None],
        look: Callable[..., Missing | None] | None = None,
    ) -> None:
        self._job, self._node, self._env = job, node, env
        self._clock, self._emit, self._look = clock, emit, look or missing
        self._looker: Background[tuple[int, Missing | None]] = Background("stoker-proofs")
        self._next_look = 0.0
        self.refusal = ""

    def ready(self, state: st.RunState, backoff: st.Backoff) -> bool:
        """Check whether the next launch may begin now. The check runs at most once every `POLL_S` seconds."""
        self.refusal = ""  # from an earlier wait, after which the user may have made room
        decision, attempt = backoff.decision, backoff.attempt
        if not decision.show_first:
            return True
        now = self._clock.mono()
        if now < self._next_look and not self._looker.busy:
            return False
        self._next_look = now + POLL_S
        t = self._clock.wall()
        waited_s = max(t - backoff.until, 0.0)
        found = self._find(decision.show_first, state, attempt)
        if found is not None and waited_s < decision.wait_s:
            if state.waiting is None or state.waiting.precondition is not found.precondition:
                text = f"waiting, {decision.wait_s:.0f} s at most: {found.text}"
                self._emit(ev.WaitingFor(t=t, attempt=attempt, precondition=found.precondition, text=text))
            return False
        if found is not None and found.fatal:
            self.refusal = f"waited {waited_s:.0f} s: {found.text}"
            return False
        text = f"launched after {waited_s:.0f} s all the same: {found.text}" if found is not None else ""
        self._emit(ev.LaunchCleared(t=t, attempt=attempt, waited_s=round(waited_s, 3), text=text))
        return True

    def close(self) -> None:
        """Wait briefly for any check in progress."""
        self._looker.close(CLOSE_S)

    def _find(self, wanted: tuple[Precondition, ...], state: st.RunState, attempt: int) -> Missing | None:
        if not self._looker.busy:
            self._looker.start(lambda: (attempt, self._look(wanted, self._job, state, self._node, self._env)))
        found = self._looker.poll(LOOK_S)
        if found is not None and found[0] == attempt:
            return found[1]
        if found is not None or self._looker.busy:
            return Missing(wanted[0], f"no answer yet to what was asked of {wanted[0].replace('_', ' ')}")
        return None  # the check itself failed, which is logged and does not stop the run


def missing(
    preconditions: tuple[Precondition, ...],
    job: JobSpec,
    state: RunState,
    node: NodePaths,
    env: Mapping[str, str],
    gpus: Callable[[], list[GpuSample]] | None = None,
) -> Missing | None:
    """Return the first of `preconditions` that is not currently met, or None."""
    for precondition in preconditions:
        found: Missing | None = None
        match precondition:
            case Precondition.GPU_MEMORY:
                found = _gpu_memory(job, state, node, env, gpus or read_gpus)
            case Precondition.PORT if job.master_port is not None and not is_free(job.master_port):
                holder = port_holder(job.master_port) or "somebody"
                found = Missing(precondition, f"port {job.master_port} is still held by {holder}", fatal=True)
            case Precondition.DISK:
                found = _disk(state, node)
            case _:
                continue
        if found is not None:
            return found
    return None


def read_gpus() -> list[GpuSample]:
    """Read all GPUs once. Return an empty list if there is no driver."""
    found = survey_gpus()
    return [] if isinstance(found, str) else [*found.samples]


def _gpu_memory(
    job: JobSpec,
    state: RunState,
    node: NodePaths,
    env: Mapping[str, str],
    read: Callable[[], list[GpuSample]],
) -> Missing | None:
    """Return what must still happen before the dead ranks' memory is free. Memory used by other processes is ignored."""
    samples = read()
    if not samples or not state.attempts:
        return None
    view = state.attempts[-1]
    dead = {rank.pid for rank in view.ranks.values() if rank.pid is not None}
    seen = dict(job.env).get("CUDA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    visible = visible_devices(seen, [sample.device for sample in samples])
    wanted = {device.index for device in visible} if visible is not None else None
    # The memory in use on each GPU when the attempt began, before its ranks had loaded torch.
    first = at_first(node.series, GPU, view.number, "memory_used_bytes")
    for sample in samples:
        index, used = sample.device.index, sample.memory_used_bytes
        if (wanted is not None and index not in wanted) or used is None:
            continue
        holders = sample.processes or ()
        left = [p for p in holders if p.pid in dead]
        over = used - first.get(str(index), used) - SLACK_BYTES
        text = ""
        if left:
            held = sum(p.memory_used_bytes or 0 for p in left)
            text = f"GPU {index}: {size(held)} of pid {left[0].pid} (ended) are not back yet"
        elif over > 0 and not any(_is_new(p.pid, view.started_t) for p in holders):
            text = f"GPU {index}: {size(int(over))} more in use than before the launch"
        if text:
            return Missing(Precondition.GPU_MEMORY, text)
    return None


def _is_new(pid: int, since_t: float | None) -> bool:
    """Check whether a process started after the launch. If that is unknown, the process counts as new."""
    try:
        return since_t is None or os.stat(f"/proc/{pid}").st_mtime >= since_t
    except OSError:
        return True


def _disk(state: RunState, node: NodePaths) -> Missing | None:
    """Check that the disk has room for logs and, if its size is known, one more checkpoint. Return what is missing."""
    wanted = {str(node.root): ROOM_BYTES}
    if state.checkpoint is not None:
        folder = os.path.dirname(os.path.abspath(state.checkpoint.path))
        wanted[folder] = ROOM_BYTES + _checkpoint_bytes(state.checkpoint)
    for path, needed in wanted.items():
        fill = disk_fill(path)
        if fill is not None and fill.available_bytes < needed:
            text = f"{size(fill.available_bytes)} free at {path}, {size(needed)} needed"
            return Missing(Precondition.DISK, text, fatal=True)
    return None


def _checkpoint_bytes(saved: CheckpointCommitted) -> int:
    """Return the size of a single checkpoint, even if its path is a folder that contains several."""
    try:
        return sum(
            os.stat(file).st_size for file in files_of(saved.path, saved.layout, saved.number).values()
        )
    except OSError:
        return 0


# -- the copy of the checkpoint to resume from --------------------------------------------------------

# Before an attempt resumes, the keeper copies its checkpoint, so that the attempt cannot overwrite it.
#
# A script that fails to resume begins at step 0 and overwrites its checkpoints. `torch.save` truncates the file in place, so a hard link
# would lose its bytes, too. The copy is in the attempt's own folder, hidden and without the name of a checkpoint, because a script might
# search any other folder for its newest one. The copy shares its blocks with the original if the file system supports reflinks. Otherwise
# it is a real copy if twice its size is free. If not, the journal shows why there is none. A missing copy never blocks a launch.

KEPT_NAME: Final = ".stoker-kept-"
FICLONE: Final = 0x40049409
"""The Linux ioctl that makes two files share blocks. Btrfs, XFS, bcachefs, and overlays on top of these support it."""
COPY_WAIT_S: Final = 0.5
"""Seconds the keeper's loop waits for a copy. A reflink takes milliseconds."""
MOST_S: Final = 600.0
"""Seconds before a copy is abandoned. At 2 GB/s, 1 TB takes 500 s, and no training happens in the meantime."""
CHUNK_BYTES: Final = 16 << 20
REMOVE_S: Final = 2.0


class KeptCopies:
    """Copies checkpoints in a separate thread and removes the copies. Only the keeper's thread calls this class."""

    def __init__(self, context: RunContext) -> None:
        self._context, self._ledger, self._clock = context, context.ledger, context.clock
        self._copier: Background[ev.CheckpointKept | None] = Background("stoker-copy")
        self._given_up = threading.Event()
        self._began = 0.0
        self._done_for: tuple[int, Decision] | None = None

    def ready(self, backoff: Backoff) -> bool:
        """Check whether the next attempt's checkpoint has been copied or needs no copy, so it may launch. Poll until this is True."""
        state = self._ledger.state
        number = len(state.attempts) + 1
        if self._done_for == (number, backoff.decision):
            return True
        if not self._copier.busy:
            self._given_up.clear()
            self._began = self._clock.mono()
            self._copier.start(lambda: self._keep(state, number))
        kept = self._copier.poll(COPY_WAIT_S)
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
        """Remove copies the journal no longer mentions, and modified copies once a newer checkpoint exists or the run is `over`."""
        state, folder = self._ledger.state, self._context.node.attempt(1).root.parent
        drop_copies(state, over=over)
        kept = {one.copy for one in state.kept}
        for copy in folder.glob(f"*/{KEPT_NAME}*"):
            if str(copy) not in kept:
                within(REMOVE_S, partial(_remove, copy), "stoker-remove")

    def close(self) -> None:
        """Abandon any copy in progress."""
        self._given_up.set()
        self._copier.close(REMOVE_S)

    def _keep(self, state: RunState, number: int) -> ev.CheckpointKept | None:
        """Copy the checkpoint, in the copier's thread. Return None if there is no checkpoint or it already has a copy."""
        context, now = self._context, next_job(self._context.record.job, state)
        try:
            saved = resume_point(context.record, state, context.run, now, context.env).checkpoint
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
        """Copy the checkpoint. Return why that failed, or "" if it succeeded."""
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
    """Make a file share another file's blocks. Return False if the file system does not support that."""
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


# -- the rendezvous, which logs nothing until the ranks have started ------------------------------------


RANKS_WAIT_S: Final = 10.0
"""Seconds that torchrun may need on a busy machine before node 0 is listening and the other nodes have found it."""
PROBE_EVERY_S: Final = 5.0
CODE: Final = "rendezvous"


class RendezvousWatch:
    """Probes the rendezvous while an attempt has no ranks here, and journals each kind of failure once.

    Only a second consecutive refusal counts, because node 0 may be about to listen or to exit.
    """

    def __init__(self, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._clock, self._emit = clock, emit
        self._probe: Background[Failed | None] = Background("stoker-rendezvous")
        self._due = float("-inf")
        self._attempt = 0
        self._said: set[Way] = set()
        self._refused = False

    def look(self, view: st.AttemptState | None, where: tuple[str, int] | None) -> None:
        """Probe if due. Call this often. For `where`, see `rendezvous_of`."""
        if view is None or where is None or view.started_t is None:
            return
        if any(rank.pid for rank in view.ranks.values()):
            return
        now = self._clock.mono()
        if view.number != self._attempt:
            self._attempt, self._due, self._said, self._refused = (
                view.number,
                now + RANKS_WAIT_S,
                set(),
                False,
            )
        if self._probe.busy:
            if self._probe.working:
                return
            found, before = self._probe.poll(), self._refused
            self._refused = found is not None and found.way is Way.REFUSED
            if self._refused and not before:
                return
            if found is not None and found.way not in self._said:
                self._said.add(found.way)
                text = f"waiting for the rendezvous: {found.what}; {found.fix}"
                code = f"{CODE}_{view.number}_{found.way.value}"
                self._emit(ev.Advisory(t=self._clock.wall(), attempt=view.number, code=code, text=text))
        elif now >= self._due:
            self._due = now + PROBE_EVERY_S
            self._probe.start(lambda: why_not(*where))

    def close(self) -> None:
        """Wait for any probe in progress."""
        self._probe.close(CONNECT_S)


def rendezvous_of(job: JobSpec, order: Order | None) -> tuple[str, int] | None:
    """Return the address where torchrun's store listens on node 0, or None if unknown. `order` may set the port."""
    launch = order.launch if order is not None else None
    if launch is not None and launch.master_port:
        job = replace(job, master_port=launch.master_port)
    host, port = meeting_point(job)
    return (host, port or ENDPOINT_PORT) if host else None
