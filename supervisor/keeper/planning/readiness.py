"""What a due launch waits for: GPU memory to be freed, a free port, space on the disk.

The checks run in a thread of their own: a driver whose GPU just failed, or a file server that is unreachable, may never answer, and the
keeper must still react to a stop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from supervisor.job.memory_fit import size
from supervisor.job.spec import JobSpec
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.preflight.network import is_free, port_holder
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import CheckpointCommitted
from supervisor.run.paths import NodePaths
from supervisor.run.records import Precondition
from supervisor.run.series import GPU, at_first
from supervisor.run.state import RunState
from supervisor.sources.checkpoint_layouts import files_of
from supervisor.sources.gpu import GpuReader, GpuSample, NvmlUnavailableError, visible_devices
from supervisor.sources.machine import disk_fill

POLL_S = 0.25
LOOK_S = 0.5
"""How long the loop waits for an answer: normally NVML and the disk answer within milliseconds."""
CLOSE_S = 2.0
# Driver contexts of some 100 MiB come and go; NVRx uses the same figure (nvidia-resiliency-ext).
SLACK_BYTES = 512 << 20
# Enough for hours of logs and series; a checkpoint is added if its size is known.
ROOM_BYTES = 256 << 20


class Way(StrEnum):
    """Whether the next launch may begin now."""

    WAIT = "wait"
    GO = "go"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Missing:
    """A condition that is not met yet. `fatal`: after the wait, a launch is pointless; otherwise it is tried anyway."""

    precondition: Precondition
    text: str
    fatal: bool = False


class ReadinessCheck:
    """Used by the keeper's only thread while a launch is due. It keeps no state that an adopting keeper needs."""

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

    def way(self, state: st.RunState, backoff: st.Backoff) -> Way:
        """Check at most every `POLL_S` seconds. After NEVER, `refusal` says why."""
        decision, attempt = backoff.decision, backoff.attempt
        if not decision.show_first:
            return Way.GO
        now = self._clock.mono()
        if now < self._next_look and not self._looker.busy:
            return Way.WAIT
        self._next_look = now + POLL_S
        waited_s = max(self._clock.wall() - backoff.until, 0.0)
        found = self._find(decision.show_first, state, attempt)
        if found is not None and waited_s < decision.wait_s:
            if state.waiting is None or state.waiting.precondition is not found.precondition:
                text = f"waiting, {decision.wait_s:.0f} s at most: {found.text}"
                self._emit(
                    ev.WaitingFor(
                        t=self._clock.wall(), attempt=attempt, precondition=found.precondition, text=text
                    )
                )
            return Way.WAIT
        self._next_look = 0.0
        if found is not None and found.fatal:
            self.refusal = f"waited {waited_s:.0f} s: {found.text}"
            return Way.NEVER
        text = f"launched after {waited_s:.0f} s all the same: {found.text}" if found is not None else ""
        self._emit(
            ev.LaunchCleared(t=self._clock.wall(), attempt=attempt, waited_s=round(waited_s, 3), text=text)
        )
        return Way.GO

    def close(self) -> None:
        """Wait briefly for a check in progress."""
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
    """The first of `preconditions` that is not met now, or None."""
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
    """Read all GPUs once; empty without a driver."""
    try:
        reader = GpuReader(lambda _note: None)
    except NvmlUnavailableError:
        return []
    try:
        return reader.read()
    except NvmlUnavailableError:
        return []
    finally:
        reader.close()


def _gpu_memory(
    job: JobSpec,
    state: RunState,
    node: NodePaths,
    env: Mapping[str, str],
    read: Callable[[], list[GpuSample]],
) -> Missing | None:
    """What is missing until the memory of the dead ranks is free. Memory of other processes is not waited for."""
    samples = read()
    if not samples or not state.attempts:
        return None
    view = state.attempts[-1]
    dead = {rank.pid for rank in view.ranks.values() if rank.pid is not None}
    seen = dict(job.env).get("CUDA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    visible = visible_devices(seen, [sample.device for sample in samples])
    wanted = {device.index for device in visible} if visible is not None else None
    first = _first_readings(node, view.number)
    for sample in samples:
        index, used = sample.device.index, sample.memory_used_bytes
        if (wanted is not None and index not in wanted) or used is None:
            continue
        holders = sample.processes or ()
        left = [p for p in holders if p.pid in dead]
        if left:
            held = sum(p.memory_used_bytes or 0 for p in left)
            return Missing(
                Precondition.GPU_MEMORY,
                f"GPU {index}: {size(held)} of pid {left[0].pid} (ended) are not back yet",
            )
        over = used - first.get(index, used) - SLACK_BYTES
        strangers = [p for p in holders if p.pid not in dead and _is_new(p.pid, view.started_t)]
        if over > 0 and not strangers:
            return Missing(
                Precondition.GPU_MEMORY, f"GPU {index}: {size(over)} more in use than before the launch"
            )
    return None


def _first_readings(node: NodePaths, attempt: int) -> dict[int, int]:
    """The memory in use on each GPU when the attempt began, before its ranks had loaded torch."""
    found = at_first(node.series, GPU, attempt, "memory_used_bytes")
    return {int(key): int(used) for key, used in found.items() if key.isdigit()}


def _is_new(pid: int, since_t: float | None) -> bool:
    """Whether a process began after the launch; if that is unknown, it counts as new."""
    try:
        return since_t is None or os.stat(f"/proc/{pid}").st_mtime >= since_t
    except OSError:
        return True


def _disk(state: RunState, node: NodePaths) -> Missing | None:
    """Whether there is space for logs, and for another checkpoint if its size is known."""
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
    """The size of one checkpoint, even if its path is a folder of several."""
    try:
        return sum(
            os.stat(file).st_size for file in files_of(saved.path, saved.layout, saved.number).values()
        )
    except OSError:
        return 0
