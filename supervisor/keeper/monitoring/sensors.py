"""GPUs, the machine and the ranks' processes, sampled beside the attempt.

The samplers know nothing of runs; here their readings get the names and keys that series hold
(docs/run-directory.md).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from supervisor.keeper.clock import Clock, of_others
from supervisor.keeper.monitoring.observations import GpuSeen, Observation, Sampled, SensorFact
from supervisor.keeper.monitoring.other_gpu_users import OtherGpuUsers, Use
from supervisor.run.series import GPU, HOST, MACHINE_KEY, NET_RECEIVED, NET_SENT
from supervisor.sources.gpu import GpuDevice, GpuNote, GpuNoteCode, GpuSample, GpuSampler
from supervisor.sources.host.machine import SHM, HostSample, HostSampler, ProcessSample
from supervisor.sources.processes import ProcessId, identify

JOIN_S = 3.0
# The key of the keeper's own process, no rank's: what supervision itself takes of the machine.
OWN = "stoker"


class Sensors:
    """The samplers of one attempt: started once, given processes to watch, ended by the stop event."""

    def __init__(
        self,
        stop: threading.Event,
        put: Callable[[Observation], None],
        clock: Clock,
        *,
        interval_s: float,
        disk: str,
    ) -> None:
        """`disk`: a folder on the filesystem that the run is written to."""
        self._put = put
        self._clock = clock
        self._processes: dict[str, ProcessId] = {}
        self._lock = threading.Lock()
        self._other_gpu_users = OtherGpuUsers()
        self._named: set[GpuDevice] = set()
        self._gpus = GpuSampler(stop, self._on_gpus, on_note=self._on_gpu_note, interval_s=interval_s)
        self._own = {OWN: own} if (own := identify(os.getpid())) is not None else {}
        self._host = HostSampler(stop, self._read, self._on_host, disks=(SHM, disk), interval_s=interval_s)

    def start(self) -> None:
        """Begin to sample."""
        self._gpus.start()
        self._host.start()

    def join(self) -> None:
        """Wait for the threads; one that hangs in a driver is left behind (it is a daemon)."""
        self._gpus.join(JOIN_S)
        self._host.join(JOIN_S)

    def watch(self, key: str, process: ProcessId) -> None:
        """Sample a rank's process from now on."""
        with self._lock:
            self._processes[key] = process

    def _watched(self) -> dict[str, ProcessId]:
        with self._lock:
            return dict(self._processes)

    def _read(self) -> dict[str, ProcessId]:
        return {**self._watched(), **self._own}

    def _on_gpus(self, samples: Sequence[GpuSample]) -> None:
        watched = {process.pid for process in self._watched().values()}
        uses = {use.index: use for use in self._other_gpu_users.uses(samples, watched)}
        for sample in samples:
            index = sample.device.index
            if sample.device not in self._named:
                self._named.add(sample.device)
                self._put(GpuSeen(of_others(sample.t, self._clock), sample.device))
            self._put(
                Sampled(
                    of_others(sample.t, self._clock), GPU, str(index), gpu_values(sample, uses.get(index))
                )
            )
            text = uses[index].advice() if index in uses else None
            if text is not None:
                self._put(SensorFact(of_others(sample.t, self._clock), f"gpu_shared_{index}", text))

    def _on_gpu_note(self, note: GpuNote) -> None:
        if note.code is not GpuNoteCode.ABSENT:  # a machine without GPUs is no news
            code = f"{note.code}_{note.index if note.index is not None else ''}_{note.xid or ''}"
            self._put(SensorFact(of_others(note.t, self._clock), code, note.text))

    def _on_host(self, machine: HostSample, processes: Sequence[ProcessSample]) -> None:
        own = next((sample for sample in processes if sample.key == OWN), None)
        values = machine_values(machine) | own_values(own)
        self._put(Sampled(of_others(machine.t, self._clock), HOST, MACHINE_KEY, values))
        for sample in processes:
            if sample.alive and sample is not own:
                self._put(Sampled(of_others(sample.t, self._clock), HOST, sample.key, sample.values()))


def gpu_values(sample: GpuSample, use: Use | None = None) -> dict[str, float | None]:
    """A GPU's numbers by the names of the series; which processes use it, where that is known."""
    clock_hz = sample.sm_clock_hz
    return {
        "util_ratio": sample.util_ratio,
        "memory_util_ratio": sample.memory_util_ratio,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_total_bytes": sample.memory_total_bytes,
        "temperature_c": sample.temperature_celsius,
        "power_w": sample.power_watts,
        "power_limit_w": sample.power_limit_watts,
        "sm_clock_mhz": None if clock_hz is None else clock_hz / 1e6,
        "throttle": sample.throttle_bits,
        "ecc_uncorrected": sample.ecc_uncorrected,
        "lost": float(sample.lost),
        **(use.values() if use is not None else {}),
    }


def machine_values(sample: HostSample) -> dict[str, float | None]:
    """The machine's numbers by the names of the series."""
    fills = {disk.path: disk.used_ratio for disk in sample.disks}
    others = [ratio for path, ratio in fills.items() if path != SHM]
    free = [disk.available_bytes for disk in sample.disks if disk.path != SHM]
    cgroup = sample.cgroup
    return {
        "cpu_ratio": sample.cpu_ratio,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_total_bytes": sample.memory_total_bytes,
        "load1": sample.load_1m,
        "shm_used_ratio": fills.get(SHM),
        "disk_used_ratio": others[0] if others else None,
        "disk_free_bytes": free[0] if free else None,
        "cgroup_used_bytes": cgroup.used_bytes if cgroup is not None else None,
        "cgroup_limit_bytes": cgroup.limit_bytes if cgroup is not None else None,
        "cgroup_oom_kills": cgroup.oom_kills if cgroup is not None else None,
        **{NET_RECEIVED + link.name: link.received_bytes_per_s for link in sample.links},
        **{NET_SENT + link.name: link.sent_bytes_per_s for link in sample.links},
    }


def own_values(sample: ProcessSample | None) -> dict[str, float | None]:
    """What the keeper takes: its share of all cores, and its memory in bytes."""
    if sample is None or not sample.alive:
        return {}
    ratio = sample.cpu_ratio
    return {
        "stoker_cpu_ratio": None if ratio is None else ratio / (os.cpu_count() or 1),
        "stoker_rss_bytes": sample.rss_bytes,
    }
