"""The machine and its processes, out of /proc: CPU, memory, threads, I/O, cgroup limits, full disks.

/proc is read directly: with the stat files held open, eight processes cost less than a tenth of what psutil
takes, and a held file never turns to another process that got the same pid.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.sources.host.cgroup import CgroupMemory, read_cgroup_memory
from supervisor.sources.processes import ProcessId

SHM = "/dev/shm"  # noqa: S108 - looked at, never written to


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One reading of one process. Ratios count cores: 1.0 is one core busy, more are more.

    `cpu_ratio` covers the time since the reading before, so the first has None. The byte counters are since
    the process began and need the same user.
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
        """The numbers of it, by the names that series hold."""
        return {
            "cpu_ratio": self.cpu_ratio,
            "rss_bytes": self.rss_bytes,
            "threads": self.threads,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
        }


@dataclass(frozen=True, slots=True)
class DiskFill:
    """How full the filesystem under `path` is."""

    path: str
    total_bytes: int
    available_bytes: int

    @property
    def used_ratio(self) -> float:
        """Share that is not available to an ordinary user, 0–1."""
        return 1.0 - self.available_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class HostSample:
    """One reading of the machine. `cpu_ratio`: share of all cores, 0–1, since the reading before."""

    t: float
    cpu_ratio: float | None = None
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    cgroup: CgroupMemory | None = None
    disks: tuple[DiskFill, ...] = ()


class ProcessReader:
    """Reads one process again and again. Not thread-safe; close it."""

    def __init__(self, key: str, process: ProcessId) -> None:
        self.key = key
        self.process = process
        self._stat_fd = _open(f"/proc/{process.pid}/stat")
        self._io_fd = _open(f"/proc/{process.pid}/io")
        self._before: tuple[float, int] | None = None

    def read(self) -> ProcessSample:
        """One sample; `alive` is False once the process is gone, a zombie, or was another all along."""
        now = time.monotonic()
        t = time.time()
        raw = _pread(self._stat_fd)
        fields = raw[raw.rfind(b")") + 2 :].split() if raw else []
        hertz = os.sysconf("SC_CLK_TCK")
        if len(fields) < 22 or fields[0] in b"ZXx" or int(fields[19]) / hertz != self.process.start_time:
            return ProcessSample(t, self.key, self.process, alive=False)
        ticks = int(fields[11]) + int(fields[12])
        before, self._before = self._before, (now, ticks)
        ratio = None
        if before is not None and now > before[0]:
            ratio = max(0.0, (ticks - before[1]) / hertz / (now - before[0]))
        counters = self._counters()
        return ProcessSample(
            t=t,
            key=self.key,
            process=self.process,
            alive=True,
            cpu_ratio=ratio,
            rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
            threads=int(fields[17]),
            read_bytes=counters.get(b"read_bytes"),
            write_bytes=counters.get(b"write_bytes"),
        )

    def close(self) -> None:
        """Close the files."""
        for fd in (self._stat_fd, self._io_fd):
            if fd >= 0:
                os.close(fd)
        self._stat_fd = self._io_fd = -1

    def _counters(self) -> dict[bytes, int]:
        pairs = (line.partition(b": ") for line in _pread(self._io_fd).splitlines())
        return {name: int(value) for name, _, value in pairs if value.isdigit()}


class HostReader:
    """Reads the machine again and again. Not thread-safe.

    Args:
        disks: folders whose filesystems to look at; one that cannot be read is left out.
        root: where /proc and /sys lie; tests give their own.
    """

    def __init__(self, disks: Sequence[str] = (SHM,), root: str = "/") -> None:
        self._disks = tuple(disks)
        self._root = root
        self._before: tuple[int, int] | None = None

    def read(self) -> HostSample:
        """One sample."""
        memory = self._meminfo()
        total, available = memory.get("MemTotal"), memory.get("MemAvailable")
        swap, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
        return HostSample(
            t=time.time(),
            cpu_ratio=self._cpu(),
            load_1m=self._load(),
            memory_used_bytes=total - available if total is not None and available is not None else None,
            memory_total_bytes=total,
            swap_used_bytes=swap - swap_free if swap is not None and swap_free is not None else None,
            cgroup=read_cgroup_memory(root=self._root),
            disks=tuple(fill for path in self._disks if (fill := disk_fill(path)) is not None),
        )

    def _cpu(self) -> float | None:
        # proc(5): user nice system idle iowait irq softirq steal; guest time is within user and nice.
        line = _slurp(os.path.join(self._root, "proc/stat")).partition(b"\n")[0].split()
        if len(line) < 6 or line[0] != b"cpu":
            return None
        numbers = [int(field) for field in line[1:9]]
        now = (sum(numbers), numbers[3] + numbers[4])
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None
        return min(1.0, max(0.0, 1.0 - (now[1] - before[1]) / (now[0] - before[0])))

    def _load(self) -> float | None:
        first = _slurp(os.path.join(self._root, "proc/loadavg")).split(b" ", 1)[0]
        try:
            return float(first)
        except ValueError:
            return None

    def _meminfo(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in _slurp(os.path.join(self._root, "proc/meminfo")).splitlines():
            name, _, rest = line.partition(b":")
            number = rest.split()
            if number and number[0].isdigit():
                found[name.decode("ascii", "replace")] = int(number[0]) * 1024
        return found


class HostSampler:
    """A thread that reads the machine and the ranks' processes every `interval_s`.

    Args:
        stop: ends the thread.
        processes: says whom to read now: a key (the rank) for each process.
        on_samples: gets the machine's sample and those of the processes, in the order given.
        disks: folders whose filesystems to look at.
        interval_s: how often.
    """

    def __init__(
        self,
        stop: threading.Event,
        processes: Callable[[], Mapping[str, ProcessId]],
        on_samples: Callable[[HostSample, Sequence[ProcessSample]], None],
        *,
        disks: Sequence[str] = (SHM,),
        interval_s: float = 1.0,
    ) -> None:
        self._stop = stop
        self._processes = processes
        self._on_samples = on_samples
        self._host = HostReader(disks)
        self._interval_s = interval_s
        self._readers: dict[str, ProcessReader] = {}
        # Daemon: statvfs on a dead network filesystem never returns.
        self._thread = threading.Thread(target=self._run, name="stoker-host", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end (set the stop event first); False when it did not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                self._follow(self._processes())
                self._on_samples(self._host.read(), [reader.read() for reader in self._readers.values()])
                if self._stop.wait(self._interval_s):
                    return
        finally:
            self._follow({})

    def _follow(self, wanted: Mapping[str, ProcessId]) -> None:
        for key, reader in list(self._readers.items()):
            if wanted.get(key) != reader.process:
                reader.close()
                del self._readers[key]
        for key, process in wanted.items():
            if key not in self._readers:
                self._readers[key] = ProcessReader(key, process)


def disk_fill(path: str) -> DiskFill | None:
    """How full the filesystem of `path` is; None where it cannot be read."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskFill(path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _pread(fd: int) -> bytes:
    if fd < 0:
        return b""
    try:
        return os.pread(fd, 4096, 0)
    except OSError:
        return b""  # ESRCH: the process is gone


def _slurp(path: str) -> bytes:
    fd = _open(path)
    if fd < 0:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)
