"""The sensors of one attempt (logs, telemetry, GPUs and processes), all feeding a single queue.

The collector knows the attempt's files but not the run's state.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.keeper_clock import Clock, of_others
from supervisor.keeper.monitoring.log_monitor import LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import Observation, RankGone, Reported, Sampled, advice
from supervisor.keeper.process.members import pids_are_the_drivers, user_of
from supervisor.run.arrivals import ArrivalWriter
from supervisor.run.events import GpuFound, RankStarted
from supervisor.run.paths import AttemptPaths
from supervisor.run.series import GPU, HOST, MACHINE_KEY, NET_RECEIVED, NET_SENT
from supervisor.run.state import AttemptState
from supervisor.sources.gpu import GpuDevice, GpuNote, GpuNoteCode, GpuProcess, GpuSample, GpuSampler
from supervisor.sources.machine import SHM, HostSample, HostSampler, ProcessSample
from supervisor.sources.processes import ExitWatch, ProcessId, command_of, identify, parent_of
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

AGENT = "agent.log"
# torchrun 1.9 and later logs one of these before it waits for the workers that it is ending
# (torch/distributed/elastic/multiprocessing/api.py).
ENDING = (b"closing signal", b"failed (exitcode")
OWN_SIGNAL = (b"Received Signals.SIG", b"death signal")


class Collector:
    """Collects from one attempt's sensors. Start it once, add ranks as they appear, and stop it once its `logs` have been fully read."""

    def __init__(
        self,
        paths: AttemptPaths,
        *,
        queue: SimpleQueue[Observation],
        clock: Clock,
        interval_s: float,
        engine: Callable[[], Engine],
        job: JobSpec,
        engine_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._paths = paths
        kind = job.entry_kind
        self._one_node = job.nnodes == "1"
        self._agent_kind = LogKind.RANK if kind is EntryKind.COMMAND else LogKind.AGENT
        self._ranks: dict[int, int] = {}
        self._agent_ending = threading.Event()
        self._stop = threading.Event()
        self._arrivals = ArrivalWriter(paths)
        self._sensors = Sensors(self._stop, queue.put, clock, interval_s=interval_s, disk=str(paths.root))
        self._exits = ExitWatch(lambda local_rank, code: queue.put(RankGone(clock.wall(), local_rank, code)))
        self.logs = LogWatch(
            self._stop,
            put=queue.put,
            waiting=queue.qsize,
            clock=clock,
            engine=engine,
            rank_of=self._rank_of,
            measure=kind is not EntryKind.TRAINER,
            rules=job.metric_rules,
            on_agent=self._on_agent,
            engine_ready=engine_ready,
            arrivals=self._arrivals,
        )

    def start(self) -> None:
        """Start the threads."""
        self.logs.follow(LogKey(AGENT, self._agent_kind, Origin()), str(self._paths.agent_log))
        self.logs.start()
        self._sensors.start()

    def know(self, view: AttemptState) -> None:
        """Load what an earlier keeper had found."""
        for rank in view.ranks.values():
            fact = RankStarted(
                t=0.0,
                attempt=view.number,
                local_rank=rank.local_rank,
                pid=rank.pid,
                start_time=rank.start_time,
                rank=rank.rank,
                stdout=rank.stdout,
                stderr=rank.stderr,
            )
            self.add_rank(fact)

    def add_rank(self, fact: RankStarted) -> None:
        """Watch a rank's process and its log files."""
        if fact.rank is not None:
            self._ranks[fact.local_rank] = fact.rank
        if fact.pid is not None and fact.start_time is not None:
            key = str(fact.rank if fact.rank is not None else fact.local_rank)
            self._sensors.watch(key, ProcessId(fact.pid, fact.start_time))
            self._exits.watch(fact.local_rank, ProcessId(fact.pid, fact.start_time))
        for stream, name in (("stdout", fact.stdout), ("stderr", fact.stderr)):
            if name is not None:
                origin = Origin(local_rank=fact.local_rank, stream=stream)
                self.logs.follow(LogKey(name, LogKind.RANK, origin), str(self._paths.root / name))

    def look(self) -> None:
        """Follow new telemetry and measurement files."""
        if not self._paths.telemetry.is_dir():
            return
        for path in self._paths.telemetry.glob("*.jsonl"):
            for stem, kind in (("rank", LogKind.TELEMETRY), ("measured", LogKind.MEASURED)):
                digits = path.stem.removeprefix(stem)
                if digits != path.stem and digits.isdigit():
                    key = LogKey(f"telemetry/{path.name}", kind, Origin(rank=int(digits)))
                    self.logs.follow(key, str(path))

    def agent_is_ending(self) -> bool:
        """Check whether torchrun has logged that it is stopping its workers because one failed (not because of a signal)."""
        return self._agent_ending.is_set()

    def stop(self) -> None:
        """Stop the threads."""
        self._stop.set()
        self._exits.close()
        self.logs.close()
        self._arrivals.close()
        self._sensors.join()

    def _on_agent(self, data: bytes) -> None:
        if any(word in data for word in ENDING) and not any(word in data for word in OWN_SIGNAL):
            self._agent_ending.set()

    def _rank_of(self, origin: Origin) -> int | None:
        if origin.rank is not None:
            return origin.rank
        if origin.local_rank is None:
            return None
        return self._ranks.get(origin.local_rank, origin.local_rank if self._one_node else None)


# -- GPUs, the machine and the ranks' processes --------------------------------------------------------

JOIN_S = 3.0
# The key of the keeper's own process, which shows the cost of supervision.
OWN = "stoker"


class Sensors:
    """The samplers of one attempt. They are started once, are given processes to watch, and run until the stop event is set."""

    def __init__(
        self,
        stop: threading.Event,
        put: Callable[[Observation], None],
        clock: Clock,
        *,
        interval_s: float,
        disk: str,
    ) -> None:
        """`disk` is a folder on the run's filesystem."""
        self._put = put
        self._clock = clock
        self._processes: dict[
            str, ProcessId
        ] = {}  # replaced, never changed: the samplers read it in their threads
        self._other_gpu_users = OtherGpuUsers()
        self._named: set[GpuDevice] = set()
        self._gpus = GpuSampler(stop, self._on_gpus, on_note=self._on_gpu_note, interval_s=interval_s)
        self._own = {OWN: own} if (own := identify(os.getpid())) is not None else {}
        self._host = HostSampler(
            stop, lambda: self._processes | self._own, self._on_host, disks=(SHM, disk), interval_s=interval_s
        )

    def start(self) -> None:
        """Start sampling."""
        self._gpus.start()
        self._host.start()

    def join(self) -> None:
        """Wait for the threads. A thread that hangs in a driver is abandoned (it is a daemon)."""
        self._gpus.join(JOIN_S)
        self._host.join(JOIN_S)

    def watch(self, key: str, process: ProcessId) -> None:
        """Start sampling a rank's process."""
        self._processes = {**self._processes, key: process}

    def _on_gpus(self, samples: Sequence[GpuSample]) -> None:
        watched = {process.pid for process in self._processes.values()}
        for sample in samples:
            index, t = sample.device.index, of_others(sample.t, self._clock)
            use = self._other_gpu_users.use(sample, watched)
            if sample.device not in self._named:
                self._named.add(sample.device)
                gpu, size = sample.device, sample.device.memory_total_bytes
                found = GpuFound(t=t, index=gpu.index, uuid=gpu.uuid, name=gpu.name, memory_total_bytes=size)
                self._put(Reported(found))
            self._put(Sampled(t, GPU, str(index), gpu_values(sample, use)))
            text = use.advice() if use is not None else None
            if text is not None:
                self._put(advice(t, f"gpu_shared_{index}", text))

    def _on_gpu_note(self, note: GpuNote) -> None:
        if note.code is not GpuNoteCode.ABSENT:  # a machine without GPUs is not worth a note
            code = f"{note.code}_{note.index if note.index is not None else ''}_{note.xid or ''}"
            self._put(advice(of_others(note.t, self._clock), code, note.text))

    def _on_host(self, machine: HostSample, processes: Sequence[ProcessSample]) -> None:
        own = next((sample for sample in processes if sample.key == OWN), None)
        values = machine_values(machine) | own_values(own)
        self._put(Sampled(of_others(machine.t, self._clock), HOST, MACHINE_KEY, values))
        for sample in processes:
            if sample.alive and sample is not own:
                self._put(Sampled(of_others(sample.t, self._clock), HOST, sample.key, sample.values()))


def gpu_values(sample: GpuSample, use: Use | None = None) -> dict[str, float | None]:
    """Return a GPU's values keyed by series name, including its usage by processes if known."""
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
    """Return the machine's values keyed by series name."""
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
    """Return the keeper's own usage: its share of all cores and its memory in bytes."""
    if sample is None or not sample.alive:
        return {}
    ratio = sample.cpu_ratio
    return {
        "stoker_cpu_ratio": None if ratio is None else ratio / (os.cpu_count() or 1),
        "stoker_rss_bytes": sample.rss_bytes,
    }


# -- who uses a GPU: the run's own processes, and others -------------------------------------------

# An idle CUDA context holds some hundred MiB, which is not worth a note.
WORTH_SAYING_BYTES = 256 << 20
DEEPEST = 64
GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Use:
    """A GPU's compute processes, split into the run's own and all others. Memory is None if the driver reports none."""

    index: int
    own: tuple[GpuProcess, ...]
    others: tuple[GpuProcess, ...]

    def values(self) -> dict[str, float | None]:
        """Return the values keyed by series name. `others_pid` is the other process that uses the most memory."""
        values: dict[str, float | None] = {
            "own_memory_bytes": _sum(self.own),
            "others_memory_bytes": _sum(self.others),
        }
        if self.others:
            values["others_pid"] = float(max(self.others, key=_held).pid)
        return values

    def advice(self) -> str | None:
        """Return a line saying who shares a GPU with the run, or None if nobody else uses enough of it to matter."""
        if not self.own or (_sum(self.others) or 0) < WORTH_SAYING_BYTES:
            return None
        greatest = max(self.others, key=_held)
        user, name = user_of(greatest.pid), command_of(greatest.pid)
        who = f"process {greatest.pid}"
        if name:
            who = f"{who} ({name})"
        if user:
            who = f"{who} of {user}"
        text = f"GPU {self.index} is shared: {who} holds {_held(greatest) / GIB:.1f} GiB of its memory"
        return text if len(self.others) == 1 else f"{text}; {len(self.others) - 1} more"


class OtherGpuUsers:
    """Distinguishes the run's own processes on a GPU (watched, or descended from a watched one or the keeper) from all others."""

    def __init__(self) -> None:
        self._own: dict[int, frozenset[int]] = {}  # by GPU, at its last sample: an orphaned rank still counts
        self._can_tell = pids_are_the_drivers()

    def use(self, sample: GpuSample, watched: Collection[int]) -> Use | None:
        """Return a GPU's usage, or None if the driver lists no processes or its pids belong to another namespace (a container)."""
        if not self._can_tell or sample.processes is None:
            return None
        index, family = sample.device.index, frozenset([*watched, os.getpid()])
        known = self._own.get(index, frozenset())
        own = tuple(p for p in sample.processes if p.pid in known or _descends(p.pid, family))
        self._own[index] = frozenset(p.pid for p in own)
        return Use(index, own, tuple(p for p in sample.processes if p not in own))


def _descends(pid: int, family: frozenset[int]) -> bool:
    """Check whether a process belongs to the family or descends from it."""
    at: int | None = pid
    for _ in range(DEEPEST):
        if at is None or at <= 1 or at in family:
            break
        at = parent_of(at)
    return at in family


def _held(process: GpuProcess) -> int:
    return process.memory_used_bytes or 0


def _sum(processes: tuple[GpuProcess, ...]) -> int | None:
    held = [process.memory_used_bytes for process in processes]
    return None if None in held else sum(amount for amount in held if amount is not None)
