"""Says before it happens that a rank will run out of memory, from what its process measured after each step.

The allocator's peak is never reset, so it tells one thing for each size: the peak once that size was the largest so far. A line
through these points predicts a larger batch. A leak shows in the memory that is still allocated after a step.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from statistics import median
from typing import Final

from supervisor.job.memory_fit import size
from supervisor.policy.health.early_signs import Advice, rises_throughout

LEAST_STEPS: Final = 20
WARM_UP_STEPS: Final = 3
"""The optimizer allocates its state in the first step, so the peak of a size seen only before this step is too low."""
MOST_RESIDUAL: Final = 0.03
"""If a point is farther from the line than this share of its peak, memory does not grow with the number of elements alone."""
FULL: Final = 0.97
"""The share of the limit that counts as full. The allocator cannot use the rest of a card."""
NEAR: Final = 0.9
LARGER: Final = 1.1
"""Without a known maximum, say how much larger a batch may be if that is less than this factor."""
HEAVIER: Final = 0.1
"""A rank is heavier than the others if its peak is this share of the limit above theirs."""
UNUSABLE: Final = 0.15
"""Memory that the allocator holds beyond its peak use, as a share of the limit. Less is normal caching."""
EVALUATION: Final = 1.1
MOST_REACH: Final = 4.0
"""A line is not continued beyond this many times the range of sizes that it was measured on."""
SAME_SIZE: Final = 1.05
MANY_SIZES: Final = 24
"""With fewer different sizes, batches come from buckets."""
MOST_LONGER: Final = 16
"""A limit that is more than this many times as long as the longest sequence so far belongs to something else."""
_LENGTH: Final = re.compile(
    r"(?:max|model|seq|sequence|context|block|cutoff)[_.-]?(?:\w*[_.-])?(?:len|length|size|tokens)$",
    re.IGNORECASE,
)
MOST_POINTS, MOST_READINGS = 64, 240
AHEAD_STEPS: Final = 20_000
"""A leak that needs more steps than this to fill the card is not reported, unless the run is known to take them."""


@dataclass(slots=True)
class _Rank:
    """What one rank has measured. `points` maps the largest batch so far, in elements, to the peak with it."""

    steps: int = 0
    peak: int = 0
    limit: int = 0
    only_grows: bool = True
    sizes: set[int] = field(default_factory=set)
    """The sizes of the largest batches in the records, at most `MANY_SIZES`. `only_grows` says that none is below the one before."""
    last_size: int = 0
    reserved: int = 0
    largest: int = 0
    shape: tuple[int, ...] = ()
    grew_at: int = 0
    points: dict[int, int] = field(default_factory=dict)
    now: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_READINGS))
    evaluation: tuple[int, int] | None = None
    """The peaks before and after an evaluation that needed more than training did."""


class MemoryForecast:
    """Takes the instrumentation's records of all ranks of one attempt and gives each advice once.

    `total_steps` is the number of steps in the run, or None if unknown.
    """

    def __init__(self, total_steps: int | None = None) -> None:
        self._total_steps = total_steps
        self._lengths: dict[str, int] = {}
        self._ranks: dict[int, _Rank] = {}
        self._said: set[str] = set()

    def add(self, rank: int, record: Mapping[str, object]) -> Iterator[Advice]:
        """Process a rank's record (docs/telemetry.md) and yield new advice."""
        name, value = record.get("name"), record.get("value")
        if isinstance(name, str) and type(value) is int and _LENGTH.search(name):
            self._lengths[name] = value
        if record.get("kind") != "step":
            return
        known = self._ranks.setdefault(rank, _Rank())
        if not _add(known, record) or known.steps < LEAST_STEPS or not known.limit:
            return
        for advice in (
            self._longer(rank, known),
            self._climb(rank, known),
            self._fragmented(rank, known),
            self._heavy(rank, known),
            self._evaluation(rank, known),
        ):
            if advice is not None and advice.code not in self._said:
                self._said.add(advice.code)
                yield advice

    def line(self, rank: int) -> tuple[float, float] | None:
        """Return a rank's bytes without a batch and bytes for each element of its largest tensor, or None if they are not known."""
        known = self._ranks.get(rank)
        return _line(known) if known is not None and known.steps >= LEAST_STEPS else None

    def _longer(self, rank: int, known: _Rank) -> Advice | None:
        """Advise on a larger batch than any so far: one that a setting allows, or else one only a little larger."""
        line = _line(known)
        if line is None:
            return None
        base, per_element = line
        seen = f"rank {rank} peaked at {_of(known)} on a batch of {_shape(known.shape)}"
        length = known.shape[1] if len(known.shape) > 1 else 0
        allowed = [
            (most, name) for name, most in self._lengths.items() if length < most <= MOST_LONGER * length
        ]
        if allowed:
            most, name = min(allowed)
            longer = (known.shape[0], most, *known.shape[2:])
            elements = known.largest * most / length
            reach = (elements - known.largest) / (known.largest - min(known.points))
            needed = base + per_element * elements
            if reach > MOST_REACH or needed <= FULL * known.limit:
                return None
            text = f"{seen}; {_shape(longer)}, which {name} allows, needs about {size(needed)}"
            return Advice("memory_longer_batch", text, rank)
        room = (FULL * known.limit - base) / per_element / known.largest
        still_grows = known.grew_at > max(LEAST_STEPS, known.steps // 2) and len(known.points) > 2
        if not known.only_grows and len(known.sizes) < MANY_SIZES:
            return None  # buckets, whose largest has been seen
        if not still_grows or room >= LARGER or known.peak < NEAR * known.limit:
            return None
        more = f"one with {100 * max(room - 1, 0):.0f} % more elements is the largest that fits"
        return Advice("memory_longer_batch", f"{seen}; {more}: limit the length of a batch", rank)

    def _climb(self, rank: int, known: _Rank) -> Advice | None:
        """Advise on memory that is not freed after a step and grows throughout."""
        if not rises_throughout([value for _, value in known.now]):
            return None
        (first_step, first), (last_step, last) = known.now[0], known.now[-1]
        per_step = (last - first) / max(last_step - first_step, 1)
        # What a step needs besides is the peak above what is left after it.
        left = FULL * known.limit - known.peak
        full_at = known.steps + int(left / per_step) if per_step > 0 else None
        if full_at is None or full_at > (self._total_steps or known.steps + AHEAD_STEPS):
            return None
        text = (
            f"rank {rank} keeps {size(per_step)} more after each step: {_of(known)} now, full at about step {full_at:,}; "
            "look for tensors kept with their graph (loss without .item()), growing lists or caches"
        )
        return Advice("memory_climbs", text, rank)

    def _fragmented(self, rank: int, known: _Rank) -> Advice | None:
        """Advise on memory that PyTorch's allocator holds but has never needed at once."""
        unused = known.reserved - known.peak
        if known.reserved < NEAR * known.limit or unused < UNUSABLE * known.limit:
            return None
        text = (
            f"rank {rank} reserves {size(known.reserved)} of {size(known.limit)}, but needs {size(known.peak)} at most: "
            "its memory is fragmented; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps"
        )
        return Advice("memory_fragmented", text, rank)

    def _heavy(self, rank: int, known: _Rank) -> Advice | None:
        """Advise on a rank that always needs more than the others, and so limits the batch of all."""
        rest = [one for number, one in self._ranks.items() if number != rank]
        others = [one.peak for one in rest]
        # A rank that happened to draw the longest batch so far is not heavier.
        if not rest or known.largest > SAME_SIZE * max(one.largest for one in rest):
            return None
        if any(one.steps < LEAST_STEPS for one in self._ranks.values()):
            return None
        usual = median(others)
        if known.peak - max(others) < HEAVIER * known.limit:
            return None
        text = f"rank {rank} needs {_of(known)}, the others {size(usual)}: it decides which batch fits"
        return Advice("memory_heavy_rank", text, rank)

    def _evaluation(self, rank: int, known: _Rank) -> Advice | None:
        """Advise on an evaluation that needs more memory than training and comes close to the limit."""
        if known.evaluation is None or known.evaluation[1] < NEAR * known.limit:
            return None
        before, after = known.evaluation
        text = f"rank {rank} peaked at {size(after)} of {size(known.limit)} in an evaluation, at {size(before)} in training: evaluate with a smaller batch"
        return Advice("memory_evaluation", text, rank)


def _add(known: _Rank, record: Mapping[str, object]) -> bool:
    """Add a record. Return False if it has no memory."""
    number = {name: value for name, value in record.items() if type(value) is int}
    peak, now = number.get("memory_peak_bytes"), number.get("memory_now_bytes")
    if peak is None or now is None:
        return False
    known.steps += number.get("steps", 1)
    known.limit = number.get("memory_limit_bytes", known.limit)
    known.reserved = number.get("memory_reserved_bytes", 0)
    if known.steps > WARM_UP_STEPS:
        known.now.append((known.steps, now))
    in_evaluation = bool(record.get("evaluation_s")) and peak > EVALUATION * known.peak > 0
    if in_evaluation:
        known.evaluation = known.peak, peak
    known.peak = max(known.peak, peak)
    elements = number.get("elements", 0)
    known.only_grows = known.only_grows and elements >= known.last_size
    known.last_size = elements
    if len(known.sizes) < MANY_SIZES:
        known.sizes.add(elements)
    if elements > known.largest:
        known.largest, known.grew_at = elements, known.steps
        shapes = record.get("shapes")
        known.shape = max(map(tuple, shapes), key=prod) if isinstance(shapes, list) and shapes else ()
    is_settled = known.steps > WARM_UP_STEPS and known.evaluation is None
    if is_settled and known.largest and (known.largest in known.points or len(known.points) < MOST_POINTS):
        known.points[known.largest] = known.peak
    return True


def _line(known: _Rank) -> tuple[float, float] | None:
    """Return bytes at zero and bytes per element: the median slope between points (Theil 1950, Sen 1968), or None if it fits badly."""
    if min(known.points.values(), default=0) <= 0:
        return None
    slopes = [
        (after - before) / (more - fewer)
        for (fewer, before), (more, after) in combinations(sorted(known.points.items()), 2)
    ]
    if not slopes or (slope := median(slopes)) <= 0:
        return None
    base = median(peak - slope * elements for elements, peak in known.points.items())
    worst = max(abs(base + slope * elements - peak) / peak for elements, peak in known.points.items())
    return (base, slope) if worst <= MOST_RESIDUAL else None


def _of(known: _Rank) -> str:
    return f"{size(known.peak)} of {size(known.limit)}"


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(f"{number:,}" for number in shape)
