"""Predicts the largest micro-batch that fits, from measurements if possible, or else step by step.

The prediction uses the best information available: a line through two or more measured micro-batches, then the
numbers from a single failed allocation (`batch.MemoryPoint`), then only the fact that a micro-batch failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from supervisor.job.batch import (
    BatchSpec,
    MemoryPoint,
    candidates,
    with_micro_batch,
)

# The share of a rank's capacity that a predicted micro-batch may use. The allocator's fragmentation and
# the spread between ranks need the rest.
FIT_SHARE: Final = 0.95
_UNITS: Final = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE: Final = r"(\d{1,7}(?:\.\d{1,4})?) ?(bytes|B|KiB|MiB|GiB|TiB)"
_TRIED: Final = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_TOTAL: Final = re.compile(rf"total capacity of {_SIZE}")
_FREE: Final = re.compile(rf"of which {_SIZE} is free")
_IN_USE: Final = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOWED: Final = re.compile(rf"{_SIZE} allowed")
_ALLOCATED: Final = re.compile(rf"{_SIZE} is allocated by PyTorch")


class Measure(StrEnum):
    """What a memory peak measures. Peaks of different kinds are never combined in one line."""

    ALLOCATOR = "allocator"  # PyTorch's allocator on a GPU
    DEVICE = "device"  # the whole GPU, as reported by NVML, including contexts and other processes
    RESIDENT = "resident"  # the process's resident memory


@dataclass(frozen=True, slots=True)
class MemoryTrial:
    """The result of an attempt, probe or earlier run with a given micro-batch.

    Attributes:
        micro_batch: the number of samples on a rank at once.
        fitted: True if there was enough memory, False if it ran out.
        peak_bytes: the most memory a rank used. If it ran out, what it had plus what it tried to allocate, which
            is a lower bound. None if not measured.
        capacity_bytes: the memory available to a rank, or None if unknown.
        measure: what `peak_bytes` counts.
        base_bytes: bytes allocated before the first forward pass, or 0 if unknown.
        at_zero_bytes, per_sample_bytes: the line that the attempt's own batches of different sizes measured, for samples
            as large as those that failed, or 0.0 if there is none.
    """

    micro_batch: int
    fitted: bool
    peak_bytes: int | None = None
    capacity_bytes: int | None = None
    measure: Measure = Measure.ALLOCATOR
    base_bytes: int = 0
    at_zero_bytes: float = 0.0
    per_sample_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A linear memory model: bytes = `at_zero` + `per_sample` x micro-batch, fitted to `points` micro-batches, one failure (1), or batches of one attempt (0)."""

    at_zero: float
    per_sample: float
    points: int
    capacity_bytes: int

    def predicted_bytes(self, micro_batch: int) -> float:
        """Return how many bytes a rank is predicted to use."""
        return self.at_zero + self.per_sample * micro_batch

    def fits(self, micro_batch: int) -> bool:
        """Check whether `micro_batch` is predicted to stay under `FIT_SHARE` of the capacity."""
        return self.predicted_bytes(micro_batch) <= FIT_SHARE * self.capacity_bytes


def line_through(trials: Iterable[MemoryTrial]) -> Line | None:
    """Fit a line to two or more micro-batches with the same measure, using the highest peak of each.

    At least one must have fit. A failure only shows how far it got, which is always the whole card, so a line through
    failures is flat (in a real H100 run, 96 and 48 predicted 75 GiB for 12, which needed 24). Returns None if there
    is no such line or if memory does not grow with the micro-batch and so is not what was measured.
    """
    known = [t for t in trials if t.peak_bytes is not None]
    for measure in Measure:
        peaks: dict[int, int] = {}
        capacity: int | None = None
        for trial in known:
            if trial.measure is measure and trial.peak_bytes is not None:
                peaks[trial.micro_batch] = max(peaks.get(trial.micro_batch, 0), trial.peak_bytes)
                capacity = trial.capacity_bytes if trial.capacity_bytes is not None else capacity
        if len(peaks) < 2 or capacity is None or not any(t.fitted and t.measure is measure for t in known):
            continue
        count = len(peaks)
        mean_m, mean_b = sum(peaks) / count, sum(peaks.values()) / count
        spread = sum((m - mean_m) ** 2 for m in peaks)
        slope = sum((m - mean_m) * (b - mean_b) for m, b in peaks.items()) / spread
        if slope > 0:
            return Line(mean_b - slope * mean_m, slope, count, capacity)
    return None


@dataclass(frozen=True, slots=True)
class Choice:
    """The next batch and, in a few words, how it was chosen."""

    batch: BatchSpec
    how: str


def choose_smaller(
    spec: BatchSpec,
    point: MemoryPoint | None = None,
    trials: Sequence[MemoryTrial] = (),
    minimum: int = 1,
    *,
    smaller_global: bool = False,
) -> Choice | None:
    """Choose the micro-batch to try after `spec` ran out of memory, keeping the global batch.

    Args:
        spec: the batch that failed.
        point: the numbers in the failure's message, if complete.
        trials: every attempt in this run and in earlier runs of the same kind.
        minimum: the smallest micro-batch allowed.
        smaller_global: keep the accumulation instead of the global batch. The micro-batch can then be halved
            without dividing evenly: 7 becomes 3, not 1, which would break batch norm.

    Returns:
        The largest smaller divisor predicted to fit. If nothing is known, or no divisor is predicted to fit (a
        base that alone is too large is usually a wrong measurement), the next one that divides the current
        micro-batch. None if no divisor of at least `minimum` is left.
    """
    half = spec.micro_batch_per_rank // 2
    open_ = _open_values(spec, trials, minimum, half if smaller_global else 0)
    if not open_:
        return None
    found = _known_to_fit(open_, point, trials)
    if found is not None:
        micro, how = found
    elif smaller_global:
        micro, how = next((m for m in open_ if m <= half), open_[0]), "half of it"
    else:
        # 8 becomes 4 at twice the accumulation, not 5 at 10 → 16. A small step mostly runs out of memory again.
        whole = (m for m in open_ if spec.micro_batch_per_rank % m == 0)
        micro, how = next(whole, open_[0]), "the largest smaller divisor"
    if smaller_global:
        return Choice(replace(spec, micro_batch_per_rank=micro), how)
    return Choice(with_micro_batch(spec, micro), how)


def _known_to_fit(
    open_: Sequence[int], point: MemoryPoint | None, trials: Sequence[MemoryTrial]
) -> tuple[int, str] | None:
    """Return the largest micro-batch that has fit before or that a measured line or a failure predicts to fit."""
    fitted = max((t.micro_batch for t in trials if t.fitted and t.micro_batch in open_), default=None)
    line = _line_of_failure(trials) or line_through(trials)
    if line is None and fitted is None and point is not None:
        above_base = max(point.allocated_bytes + point.tried_bytes - point.base_bytes, 0)
        line = Line(point.base_bytes, above_base / point.micro_batch, 1, point.capacity_bytes)
    micro = next((m for m in open_ if line.fits(m)), None) if line is not None else None
    if line is not None and micro is not None and micro >= (fitted or 0):
        needed = f"{size(line.predicted_bytes(micro))} of {size(line.capacity_bytes)}"
        if line.points == 1:
            return micro, f"it needs at least {needed}"
        basis = f"{line.points} measured micro-batches" if line.points else "the batches of the attempt"
        return micro, f"predicted from {basis} to need {needed}"
    return (fitted, "it fitted before") if fitted is not None else None


def _line_of_failure(trials: Sequence[MemoryTrial]) -> Line | None:
    """Return the line of the newest failed attempt that measured one. What fitted before may have had shorter samples."""
    for trial in reversed(trials):
        if trial.per_sample_bytes and trial.capacity_bytes:
            return Line(trial.at_zero_bytes, trial.per_sample_bytes, 0, trial.capacity_bytes)
    return None


def _open_values(spec: BatchSpec, trials: Sequence[MemoryTrial], minimum: int, half: int) -> list[int]:
    """Return the micro-batches to choose from, largest first. `half` need not divide the batch; pass 0 to leave it out."""
    smaller = [m for m in candidates(spec) if minimum <= m < spec.micro_batch_per_rank]
    if not spec.ranks_known:
        # Only these keep an accumulation over all ranks, or a batch divided among ranks, whole.
        smaller = [m for m in smaller if spec.micro_batch_per_rank % m == 0]
    smaller = sorted({*smaller, *([half] if half >= minimum else [])}, reverse=True)
    failed = {t.micro_batch for t in trials if not t.fitted}
    # A failed value would fail again, but a record with only failures must not end the search.
    return [m for m in smaller if m < min(failed, default=spec.micro_batch_per_rank)] or smaller


def size(count: float) -> str:
    """Format a number of bytes for display."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def memory_point(text: str, micro_batch: int, *, base_bytes: int = 0) -> MemoryPoint | None:
    """Parse a CUDA out-of-memory message. Return None if numbers are missing.

    The capacity is the memory available to this process: what it has plus what is free (others may use the
    device), or its allowed fraction if one is set. The message format is that of torch 2.1 to 2.13.
    """
    tried, allocated, total = (_bytes(p, text) for p in (_TRIED, _ALLOCATED, _TOTAL))
    if tried is None or allocated is None or total is None or micro_batch < 1:
        return None
    free, in_use, allowed = (_bytes(p, text) for p in (_FREE, _IN_USE, _ALLOWED))
    capacity = total if free is None or in_use is None else min(total, free + in_use)
    if allowed is not None:
        capacity = min(capacity, allowed)
    return MemoryPoint(micro_batch, allocated, tried, capacity, base_bytes)


def _bytes(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
