"""Reads the machine and its processes via psutil: CPU, memory, threads, I/O, disk usage, and traffic per interface and RDMA port.

RDMA ports have their own counters, because interface counters do not include RDMA traffic.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from supervisor.sources import INNER_LINKS
from supervisor.sources.kernel_memory import CgroupMemory, read_cgroup_memory
from supervisor.sources.periodic import PeriodicSampler
from supervisor.sources.processes import ProcessId, is_alive

SHM = "/dev/shm"  # noqa: S108 - only inspected, never written to
INFINIBAND: Final = Path("/sys/class/infiniband")
# docs.kernel.org/admin-guide/abi-stable.html: port_rcv_data and port_xmit_data count octets divided by 4.
WORD_BYTES: Final = 4
# Only the links with the most traffic since boot. A machine with containers has hundreds.
MOST_LINKS: Final = 8


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One reading of one process. Ratios are in cores: 1.0 is one busy core, and several busy cores exceed 1.0.

    `cpu_ratio` covers the time since the previous reading, so it is None in the first one. The byte counters
    start with the process and can be read only by the user who owns it.
    """

    t: float
    key: str
    process: ProcessId
    alive: bool
    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    threads: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None

    def values(self) -> dict[str, float | None]:
        """Return the values, keyed by series name."""
        return {
            "cpu_ratio": self.cpu_ratio,
            "rss_bytes": self.rss_bytes,
            "threads": self.threads,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
        }


@dataclass(frozen=True, slots=True)
class DiskFill:
    """How full the filesystem containing `path` is."""

    path: str
    total_bytes: int
    available_bytes: int

    @property
    def used_ratio(self) -> float:
        """The fraction not available to an ordinary user, 0–1."""
        return 1.0 - self.available_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Traffic on an interface or RDMA port, in bytes per second since the previous reading."""

    name: str
    received_bytes_per_s: float
    sent_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class HostSample:
    """One reading of the machine. `cpu_ratio` is the busy fraction of all cores since the previous reading, 0–1."""

    t: float
    cpu_ratio: float | None = None
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    cgroup: CgroupMemory | None = None
    disks: tuple[DiskFill, ...] = ()
    links: tuple[LinkRate, ...] = ()


class ProcessReader:
    """Reads one process repeatedly. Not thread-safe."""

    def __init__(self, key: str, process: ProcessId) -> None:
        self.key = key
        self.process = process
        self._before: tuple[float, float] | None = None
        self._psutil: psutil.Process | None = None
        with contextlib.suppress(psutil.Error, ValueError):
            self._psutil = psutil.Process(process.pid)

    def read(self) -> ProcessSample:
        """Take a sample. `alive` is False if the process is gone, is a zombie, or is not the original process."""
        now, t = time.monotonic(), time.time()
        gone = ProcessSample(t, self.key, self.process, alive=False)
        if self._psutil is None or not is_alive(self.process):
            return gone
        try:
            with self._psutil.oneshot():
                times, memory = self._psutil.cpu_times(), self._psutil.memory_info()
                threads = self._psutil.num_threads()
        except psutil.Error:
            return gone
        try:
            counters = self._psutil.io_counters()
        except (psutil.Error, AttributeError):  # another user's process, or a system without such counters
            counters = None
        cpu_s = times.user + times.system
        before, self._before = self._before, (now, cpu_s)
        return ProcessSample(
            t=t,
            key=self.key,
            process=self.process,
            alive=True,
            cpu_ratio=(cpu_s - before[1]) / (now - before[0]) if before is not None else None,
            rss_bytes=memory.rss,
            threads=threads,
            read_bytes=counters.read_bytes if counters is not None else None,
            write_bytes=counters.write_bytes if counters is not None else None,
        )


class LinkReader:
    """Reads traffic counters repeatedly. Not thread-safe.

    Args:
        infiniband: the kernel's directory of RDMA devices.
    """

    def __init__(self, infiniband: Path = INFINIBAND) -> None:
        self._infiniband = infiniband
        self._before: tuple[float, dict[str, tuple[int, int]]] | None = None

    def read(self) -> tuple[LinkRate, ...]:
        """Return current rates for the links with the most traffic since boot, busiest first. Empty on the first reading."""
        now, counts = time.monotonic(), dict(self._counts())
        before, self._before = self._before, (now, counts)
        if before is None:
            return ()
        took_s = now - before[0]
        busiest = sorted(counts, key=lambda name: -sum(counts[name]))[:MOST_LINKS]
        rates = []
        for name in busiest:
            received, sent = counts[name]
            was = before[1].get(name)
            if was is not None and received >= was[0] and sent >= was[1]:  # otherwise the counter was reset
                rates.append(LinkRate(name, (received - was[0]) / took_s, (sent - was[1]) / took_s))
        return tuple(rates)

    def _counts(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the bytes received and sent since boot for each link with traffic."""
        for name, each in psutil.net_io_counters(pernic=True).items():
            if each.bytes_recv + each.bytes_sent and not name.startswith(INNER_LINKS):
                yield name, (each.bytes_recv, each.bytes_sent)
        for counters in sorted(self._infiniband.glob("*/ports/*/counters")):
            try:
                received, sent = (
                    int((counters / name).read_text()) for name in ("port_rcv_data", "port_xmit_data")
                )
            except (OSError, ValueError):
                continue
            port, device = counters.parent.name, counters.parents[2].name
            if received + sent:
                yield (
                    device if port == "1" else f"{device}/{port}",
                    (received * WORD_BYTES, sent * WORD_BYTES),
                )


class HostReader:
    """Reads the machine repeatedly. Not thread-safe.

    `disks` lists folders whose filesystems are checked. Unreadable ones are skipped.
    """

    def __init__(self, disks: Sequence[str]) -> None:
        self._disks = tuple(disks)
        self._links = LinkReader()
        self._before: tuple[float, float] | None = None

    def read(self) -> HostSample:
        """Take a sample."""
        memory = psutil.virtual_memory()
        return HostSample(
            t=time.time(),
            cpu_ratio=self._cpu(),
            load_1m=os.getloadavg()[0],
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            cgroup=read_cgroup_memory(),
            disks=tuple(fill for path in self._disks if (fill := disk_fill(path)) is not None),
            links=self._links.read(),
        )

    def _cpu(self) -> float | None:
        # Use times since boot, so that two readers do not shorten each other's interval as they would with
        # psutil.cpu_percent. Guest time is included in user and nice (proc(5)).
        times = psutil.cpu_times()._asdict()
        total: float = sum(value for name, value in times.items() if not name.startswith("guest"))
        idle: float = times["idle"] + times.get("iowait", 0.0)
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        return min(1.0, max(0.0, 1.0 - (idle - before[1]) / (total - before[0])))


class HostSampler(PeriodicSampler):
    """A thread that reads the machine and the rank processes every `interval_s`.

    Args:
        stop: stops the thread when set.
        processes: returns the processes to read now, keyed by rank.
        on_samples: receives the machine sample and the process samples, the latter in the order of `processes`.
        disks: folders whose filesystems are checked.
        interval_s: seconds between readings.
    """

    def __init__(
        self,
        stop: threading.Event,
        processes: Callable[[], Mapping[str, ProcessId]],
        on_samples: Callable[[HostSample, Sequence[ProcessSample]], None],
        *,
        disks: Sequence[str],
        interval_s: float,
    ) -> None:
        super().__init__("stoker-host", stop)
        self._processes = processes
        self._on_samples = on_samples
        self._host = HostReader(disks)
        self._interval_s = interval_s
        self._readers: dict[str, ProcessReader] = {}

    def sample(self) -> float:
        """Take one reading and return the seconds until the next."""
        wanted = self._processes()
        known = {k: r for k, r in self._readers.items() if wanted.get(k) == r.process}
        self._readers = {
            key: known.get(key) or ProcessReader(key, process) for key, process in wanted.items()
        }
        self._on_samples(self._host.read(), [reader.read() for reader in self._readers.values()])
        return self._interval_s


def disk_fill(path: str) -> DiskFill | None:
    """Return how full the filesystem containing `path` is, or None if it cannot be read."""
    try:
        found = psutil.disk_usage(path)
    except OSError:
        return None
    return DiskFill(path, found.total, found.free)
