"""Spots early signs of what is likely to stop or slow down this run, from its numbers alone.

Every rule needs more than one reading, because a healthy run shows each sign once in a while. The advice is what the usual
troubleshooting lists say: more data workers, pinned memory, a lower learning rate, clipping, free disk space.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.run.records import FailureClass

PAUSE_S = 7200.0
"""Seconds until the same kind of advice may be given again."""
POINTS, SPACING_S = 60, 20.0
THIRDS = 3
NEAR_LIMIT = 0.85
SOON_S = 1800.0
SPIKE_STEPS = 3
SPIKE_SPREADS = 8.0
MIN_STEPS = 30
DATA_SHARE = 0.3
DATA_SHARE_ALONE = 0.5
BUSY_GPU = 0.6
THROTTLED_READINGS = 30
CHECKPOINTS_AHEAD = 3
# A step read this many seconds later was made after the complaint. Lines written together are read together.
WENT_ON_S = 2.0
# torch.save's writer reports no file name: caffe2/serialize/inline_container.cc.
_NOT_SAVED = re.compile(
    r"(?:could not|cannot|can't|failed to|unable to|error while) (?:save|saving|write|writing)\b|inline_container\.cc|PytorchStreamWriter|Read-only file system",
    re.IGNORECASE,
)

_MORE_WORKERS = "more data workers (num_workers), pin_memory and persistent_workers, or data prepared on a local disk, would help"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice. `code` is its kind. `rank` is the rank it concerns, or None for the whole job."""

    code: str
    text: str
    rank: int | None = None


def rises_throughout(values: Sequence[float]) -> bool:
    """Check whether each third of at least `POINTS` / 2 values lies entirely above the previous third.

    A caching allocator's memory rises in steps and then levels off, whereas a leak keeps rising.
    """
    if len(values) < POINTS // 2:
        return False
    size = len(values) // THIRDS
    thirds = [values[at * size : (at + 1) * size] for at in range(THIRDS)]
    return all(min(later) > max(earlier) for earlier, later in pairwise(thirds))


class Creep:
    """Readings of one level, taken at least `SPACING_S` apart. At most `POINTS` are kept."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)

    def add(self, t: float, value: float) -> None:
        """Add a reading taken at `t` seconds."""
        if not self._points or t - self._points[-1][0] >= SPACING_S:
            self._points.append((t, value))

    def full_in_s(self, limit: float) -> float | None:
        """Estimate how many seconds remain until the level reaches `limit`, or return None if it is steady or has too few readings."""
        points = list(self._points)
        if not rises_throughout([value for _, value in points]):
            return None
        size = len(points) // THIRDS
        first, last = points[:size], points[size * (THIRDS - 1) : size * THIRDS]
        span = median(t for t, _ in last) - median(t for t, _ in first)
        rise = median(v for _, v in last) - median(v for _, v in first)
        return (limit - points[-1][1]) / rise * span


MEMORY_UNEXPECTED = "memory_unexpected"
MUCH_OFF = 0.25
"""The deviation to report, as a fraction of expected memory. Caches, a context and fragmentation alone cause about 10%."""


def unexpected_memory(trial: MemoryTrial, expected_bytes: int) -> Advice | None:
    """Compare an attempt's GPU memory use with what its configuration predicts. Return None if they are close."""
    peak, room = trial.peak_bytes, trial.capacity_bytes
    if peak is None or trial.measure is Measure.RESIDENT or abs(peak / expected_bytes - 1) <= MUCH_OFF:
        return None
    seen, expected = (
        f"{size / _GIB:.1f} GiB" + (f" ({100 * size / room:.0f} %)" if room else "")
        for size in (peak, expected_bytes)
    )
    if peak < expected_bytes:
        text = f"GPU memory: {seen} at most where {expected} were expected: a larger micro-batch may fit (--fit-batch finds it)"
    else:
        text = f"GPU memory: {seen} at most where {expected} were expected: less room is left than the configuration says"
    return Advice(MEMORY_UNEXPECTED, text)


SPIKES = {"loss": ("loss_spike", 2.0), "grad_norm": ("grad_spike", 10.0)}
"""For each value, the advice code and the multiple of the usual value that counts as a spike."""


def _spike_text(name: str, value: float, usual: float) -> str:
    if name == "loss":
        return (
            f"the loss rose to {value:.4g} from about {usual:.4g}: a lower learning rate, a longer warm-up or "
            "clipping (gradient_clip_val) helps; look at the data of these steps"
        )
    return f"the gradient norm rose to {value:.4g} from about {usual:.4g}: NaN may follow; clip gradients, lower the learning rate"


@dataclass(slots=True)
class _Spike:
    """The usual values of a metric, and how many steps in a row have been far above them."""

    usual: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    high: int = 0

    def lasts(self, value: float, factor: float) -> float | None:
        """Count a step. After enough steps in a row far above the usual value (by ratio and by spread), return the usual value."""
        if not math.isfinite(value):  # a failure, not a spike
            self.high = 0
            return None
        if len(self.usual) < MIN_STEPS:
            self.usual.append(value)
            return None
        middle = median(self.usual)
        # 1.4826 times the median distance from the median is a standard deviation that outliers do not move.
        spread = 1.4826 * median(abs(one - middle) for one in self.usual)
        high = middle > 0 and value > max(factor * middle, middle + SPIKE_SPREADS * spread)
        self.high = self.high + 1 if high else 0
        if self.high == SPIKE_STEPS:
            return middle
        self.usual.append(value)
        return None


@dataclass(slots=True)
class _Gpu:
    """The history of one GPU."""

    memory: Creep = field(default_factory=Creep)
    throttled: int = 0
    util: deque[float] = field(default_factory=lambda: deque(maxlen=60))


class EarlySigns:
    """Takes readings of one attempt and gives advice. The caller limits how often (see `PAUSE_S`)."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._host = Creep()
        self._spikes = {name: _Spike() for name in SPIKES}
        self._waits: deque[float] = deque(maxlen=50)
        self._disk_free: float | None = None
        self._free_after_save: float | None = None
        self._not_saved: tuple[float, int | None, str] | None = None

    def complaint(self, rank: int | None, t: float, failure: FailureClass, line: str) -> None:
        """Record a line from a live log that names a cause of failure. `t` is in seconds on the same clock as in `step`."""
        if failure is FailureClass.DISK_FULL or _NOT_SAVED.search(line):
            self._not_saved = self._not_saved or (t, rank, line)

    def step(self, rank: int | None, t: float, values: Mapping[str, float]) -> Iterator[Advice]:
        """Process a step's numbers, keyed by canonical name. `t` is in seconds on any clock."""
        if self._not_saved is not None:
            seen, whose, line = self._not_saved
            # A failed save that ends a run is its verdict. If the script went on, a later failure would lose more.
            if t - seen >= WENT_ON_S and rank in {None, 0, whose}:
                self._not_saved = None
                yield Advice(
                    "checkpoint_not_saved",
                    f"the run continues after it could not write ({line.strip()[:160]}): what is trained since the last whole checkpoint would be lost; "
                    "free space, or look at the folder's rights and mount",
                    whose,
                )
        if rank not in {None, 0}:
            return
        for name, (code, factor) in SPIKES.items():
            value = values.get(name)
            if value is not None and (usual := self._spikes[name].lasts(value, factor)) is not None:
                yield Advice(code, _spike_text(name, value, usual))
        yield from self._data(values)

    def gpu(self, index: str, t: float, values: Mapping[str, float | None]) -> Iterator[Advice]:
        """Process one GPU reading, given as values keyed by series name."""
        known = self._gpus.setdefault(index, _Gpu())
        used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
        if used is not None and total:
            known.memory.add(t, used)
            yield from _creeps(known.memory, used, total, f"GPU {index}", "gpu_memory_creeping")
        known.throttled = known.throttled + 1 if values.get("throttle") else 0
        if known.throttled == THROTTLED_READINGS:
            yield Advice(
                f"gpu_throttled_{index}",
                f"GPU {index} runs slower than asked for (thermal or power brake): nvidia-smi -q -d PERFORMANCE says why",
            )
        util = values.get("util_ratio")
        if util is not None:
            known.util.append(util)

    def machine(self, t: float, values: Mapping[str, float | None]) -> Iterator[Advice]:
        """Process one reading for the whole machine, given as values keyed by series name."""
        used = values.get("cgroup_used_bytes") or values.get("memory_used_bytes")
        limit = values.get("cgroup_limit_bytes") or values.get("memory_total_bytes")
        if used is not None and limit:
            self._host.add(t, used)
            yield from _creeps(self._host, used, limit, "host memory", "host_memory_creeping")
        free = values.get("disk_free_bytes")
        if free is not None:
            self._disk_free = free

    def checkpoint(self, size_bytes: int | None) -> Iterator[Advice]:
        """Process a committed checkpoint. `size_bytes` is its size on disk, or None if unknown."""
        self._not_saved = None
        free, before = self._disk_free, self._free_after_save
        self._free_after_save = free
        if free is None or not size_bytes:
            return
        fits = int(free // size_bytes)
        # If old checkpoints are deleted, the free space does not shrink, and only the next must fit.
        shrinks = before is not None and before - free >= 0.5 * size_bytes
        if fits < 1 or (shrinks and fits < CHECKPOINTS_AHEAD):
            more = (
                "no further checkpoint fits" if fits < 1 else f"{fits} more checkpoint{'s' * (fits != 1)} fit"
            )
            yield Advice(
                "disk_before_checkpoint",
                f"{more} on the disk ({free / _GIB:.1f} GiB free, {size_bytes / _GIB:.2f} GiB each): free some, or keep fewer (keep_checkpoints)",
            )

    def _data(self, values: Mapping[str, float]) -> Iterator[Advice]:
        wait, step = values.get("data_wait_s"), values.get("step_time_s")
        if wait is None or not step or not math.isfinite(wait) or not math.isfinite(step):
            return
        self._waits.append(wait / max(step, wait))
        if len(self._waits) < MIN_STEPS:
            return
        share = median(self._waits)
        utils = [median(gpu.util) for gpu in self._gpus.values() if len(gpu.util) >= 10]
        idle = bool(utils) and max(utils) < BUSY_GPU
        if share > DATA_SHARE_ALONE or (idle and share > DATA_SHARE):
            gpus = f", the GPUs are busy {100 * max(utils):.0f} % of the time" if utils else ""
            yield Advice(
                "data_bound", f"{100 * share:.0f} % of a step is waiting for data{gpus}: {_MORE_WORKERS}"
            )


def _creeps(level: Creep, used: float, limit: float, whose: str, code: str) -> Iterator[Advice]:
    if used < NEAR_LIMIT * limit:
        return
    left_s = level.full_in_s(limit)
    if left_s is not None and left_s < SOON_S:
        yield Advice(
            code,
            f"{whose} grows without pause: {used / _GIB:.1f} of {limit / _GIB:.1f} GiB, full in about {max(1, round(left_s / 60))} min; "
            "look for tensors kept with their graph (loss without .item()), growing lists or caches",
        )
