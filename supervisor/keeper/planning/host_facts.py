"""What this machine can add to advice at the time of a failure: a free port, who else holds the GPUs, who owns a pid."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from supervisor.diagnosis.evidence import RunValues
from supervisor.job.errors import JobError
from supervisor.job.spec import JobSpec
from supervisor.keeper.process.members import pids_are_the_drivers, user_of
from supervisor.preflight.ports import free_port
from supervisor.sources.gpu import GpuReader, GpuSample, NvmlUnavailableError, visible_devices

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
