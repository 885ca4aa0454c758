"""What this machine can add to advice at the time of a failure: a free port, who else holds the GPUs, who owns a pid."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Mapping

from supervisor.diagnosis.evidence import RunValues
from supervisor.job.errors import JobError
from supervisor.job.spec import JobSpec
from supervisor.preflight.ports import free_port
from supervisor.sources.gpu import GpuReader, GpuSample, NvmlUnavailableError, visible_devices
from supervisor.sources.processes import owner_of

# The first pid namespace's inode is fixed (linux/proc_ns.h, PROC_PID_INIT_INO). In another, the pids that the
# GPU driver tells are not ours: a lookup would name somebody by chance.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_OTHERS_SHOWN = 3


def with_machine(values: RunValues, job: JobSpec, env: Mapping[str, str]) -> RunValues:
    """The same with what this machine says now."""
    port = None
    if job.node_rank == 0:
        with contextlib.suppress(JobError):
            port = free_port()
    if not pids_are_the_drivers():
        return values._replace(free_port=port)
    return values._replace(
        free_port=port, user_of=user_of, other_gpu_users=other_gpu_users(values.own_pids, job, env)
    )


def other_gpu_users(own: frozenset[int], job: JobSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    """Processes that are not the run's on the GPUs that it may use, as ``process 4711 of alice (5.0 GiB on GPU 0)``."""
    try:
        reader = GpuReader(lambda _note: None)
    except NvmlUnavailableError:
        return ()
    try:
        visible = dict(job.env).get("CUDA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
        mine = visible_devices(visible, reader.devices)
        if mine is None:
            return ()
        indices = [device.index for device in mine[: job.nproc_per_node]]
        samples = [sample for sample in reader.read() if sample.device.index in indices]
    finally:
        reader.close()
    return tuple(line for sample in samples for line in _others(sample, own))[:_OTHERS_SHOWN]


def _others(sample: GpuSample, own: frozenset[int]) -> list[str]:
    found = []
    for process in sample.processes or ():
        if process.pid not in own and process.pid != os.getpid():
            user, used = user_of(process.pid), process.memory_used_bytes
            held = f"{used / (1 << 30):.1f} GiB on " if used else "on "
            found.append(
                f"process {process.pid}{f' of {user}' if user else ''} ({held}GPU {sample.device.index})"
            )
    return found


def pids_are_the_drivers() -> bool:
    """Whether pids here are those that NVML and CUDA's messages name."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def user_of(pid: int) -> str | None:
    """Who owns a living process; None if it is gone or not to be seen."""
    uid = owner_of(pid)
    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
