"""Batch arithmetic: micro-batch x accumulation x world size = global batch.

Each optimizer step processes one global batch. When the micro-batch shrinks, accumulation grows, so the
global batch stays constant. All of stoker's batch arithmetic lives in this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import isqrt

from supervisor.job.errors import JobError

# The limits on divisors tried, and on workable values listed in a refusal.
MOST_TRIED = 1_000_000
NAMED_VALUES = 3


class BatchUnit(StrEnum):
    """The unit of the global batch."""

    SAMPLES = "samples"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A batch that divides evenly: every field is positive and the product is exact.

    `micro_batch_per_rank` is in samples, `global_batch` in `unit`. With ``unit=TOKENS``, each sample counts as
    `tokens_per_sample` tokens. If `ranks_known` is False, only the micro-batch and the accumulation are known;
    `world_size` is then 1, and `global_batch` is one rank's share of a step.
    """

    micro_batch_per_rank: int
    accumulation_steps: int
    world_size: int
    unit: BatchUnit = BatchUnit.SAMPLES
    tokens_per_sample: int = 1
    ranks_known: bool = True

    @property
    def global_batch(self) -> int:
        """The number of samples or tokens in one optimizer step."""
        samples = self.micro_batch_per_rank * self.accumulation_steps * self.world_size
        return samples * (self.tokens_per_sample if self.unit is BatchUnit.TOKENS else 1)


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A planned batch change. The global batch stays the same unless the user requested otherwise."""

    before: BatchSpec
    after: BatchSpec

    @property
    def changes_global(self) -> bool:
        """Whether the global batch changes."""
        return self.before.global_batch != self.after.global_batch


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """A failed allocation: `micro_batch` would have needed at least `allocated + tried` bytes.

    Attributes:
        micro_batch: number of samples the rank was processing at once when the allocation failed.
        allocated_bytes: bytes the rank had already allocated at that moment.
        tried_bytes: size of the allocation that failed.
        capacity_bytes: total bytes the rank may allocate (device memory, cgroup limit or cap).
        base_bytes: bytes allocated before the first forward pass, independent of the batch, or 0 if unknown.
    """

    micro_batch: int
    allocated_bytes: int
    tried_bytes: int
    capacity_bytes: int
    base_bytes: int = 0


def resolve(
    *,
    world_size: int,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    accumulation: int | None = None,
    unit: BatchUnit = BatchUnit.SAMPLES,
    tokens_per_sample: int = 1,
) -> BatchSpec:
    """Complete a batch from the numbers given, or refuse it if it does not divide evenly.

    `global_batch` is in `unit`. If only a micro-batch is given, accumulation is 1. If only a global batch is
    given, the micro-batch is as large as possible (with accumulation 1, or the given accumulation).

    Raises:
        JobError: a number is not positive, no batch size is given, or the product is not exact. The message shows
            the numbers and the nearest values that work.
    """
    tokens = tokens_per_sample if unit is BatchUnit.TOKENS else 1
    for what, number in (
        ("micro-batch", micro_batch),
        ("global batch", global_batch),
        ("accumulation", accumulation),
        ("world size", world_size),
        ("tokens per sample", tokens),
    ):
        if number is not None and number < 1:
            raise JobError(f"{what} {number} is not possible: it must be at least 1")
    if global_batch is None:
        if micro_batch is None:
            raise JobError("no batch size is given: name a micro-batch or a global batch")
        return BatchSpec(micro_batch, accumulation or 1, world_size, unit, tokens)
    chunk = world_size * tokens  # the share of one sample per rank in the global batch
    if global_batch % chunk:
        raise JobError(_global_refusal(global_batch, chunk, world_size, tokens, micro_batch))
    per_rank = global_batch // chunk
    if micro_batch is None:
        micro_batch = per_rank // (accumulation or 1)
        if micro_batch * (accumulation or 1) != per_rank:
            steps = _named(divisors(per_rank), accumulation or 1)
            raise JobError(
                f"global batch {global_batch} is {_samples(per_rank)} a rank, which accumulation {accumulation} "
                f"does not divide; accumulation that works: {steps}"
            )
    if per_rank % micro_batch:
        tokens_text = f" × {tokens} tokens" if tokens > 1 else ""
        raise JobError(
            f"micro-batch {micro_batch}{tokens_text} × {_ranks(world_size)} = {micro_batch * chunk} does not divide "
            f"global batch {global_batch}; micro-batch that works: {_named(divisors(per_rank), micro_batch)}"
        )
    steps_needed = per_rank // micro_batch
    if accumulation is not None and accumulation != steps_needed:
        raise JobError(
            f"micro-batch {micro_batch} × accumulation {accumulation} × {_ranks(world_size)} is not global batch "
            f"{global_batch}: accumulation must be {steps_needed}, or leave it out"
        )
    return BatchSpec(micro_batch, steps_needed, world_size, unit, tokens)


def candidates(spec: BatchSpec) -> tuple[int, ...]:
    """Return every micro-batch that preserves `spec`'s global batch exactly, largest first."""
    return tuple(reversed(divisors(spec.micro_batch_per_rank * spec.accumulation_steps)))


def with_micro_batch(spec: BatchSpec, micro_batch: int, suggested: int | None = None) -> BatchSpec:
    """Return `spec` with a different micro-batch and the same global batch.

    Raises:
        JobError: `micro_batch` does not divide a rank's samples per step. Values that do are listed, `suggested` first.
    """
    per_rank = spec.micro_batch_per_rank * spec.accumulation_steps
    if micro_batch < 1 or per_rank % micro_batch:
        whole = f" (global batch {spec.global_batch}, {_ranks(spec.world_size)})" if spec.ranks_known else ""
        raise JobError(
            f"micro-batch {micro_batch} does not divide the {_samples(per_rank)} a rank takes a step{whole}; "
            f"micro-batch that works: {_named(divisors(per_rank), micro_batch, suggested)}"
        )
    return replace(spec, micro_batch_per_rank=micro_batch, accumulation_steps=per_rank // micro_batch)


def with_world_size(spec: BatchSpec, world_size: int) -> BatchSpec:
    """Return `spec` for a different number of ranks, with the same global batch and no larger micro-batch.

    Raises:
        JobError: the ranks cannot split a step evenly, or the current number of ranks is unknown.
    """
    samples = spec.micro_batch_per_rank * spec.accumulation_steps * spec.world_size
    if not spec.ranks_known:
        raise JobError(f"what the global batch is on {spec.micro_batch_per_rank} samples a rank is not known")
    if world_size < 1 or samples % world_size:
        raise JobError(f"global batch {spec.global_batch} does not divide by {world_size} ranks")
    per_rank = samples // world_size
    micro = max(number for number in divisors(per_rank) if number <= spec.micro_batch_per_rank)
    return replace(
        spec, micro_batch_per_rank=micro, accumulation_steps=per_rank // micro, world_size=world_size
    )


def describe(spec: BatchSpec) -> str:
    """Format the batch as a product, such as ``8 × accumulation 4 × 2 ranks = global batch 64``."""
    tokens = f" × {spec.tokens_per_sample} tokens" if spec.unit is BatchUnit.TOKENS else ""
    if not spec.ranks_known:
        product = f"{spec.micro_batch_per_rank} × accumulation {spec.accumulation_steps}"
        return f"{product} = {spec.global_batch} per rank"
    return (
        f"{spec.micro_batch_per_rank}{tokens} × accumulation {spec.accumulation_steps} × {_ranks(spec.world_size)} "
        f"= global batch {spec.global_batch}{_unit(spec)}"
    )


def factors(spec: BatchSpec) -> str:
    """Format one rank's share of a step, such as ``micro-batch 8 × accumulation 4``."""
    return f"micro-batch {spec.micro_batch_per_rank} × accumulation {spec.accumulation_steps}"


def describe_change(change: BatchChange) -> str:
    """Format a change on one line, such as ``micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged``."""
    before, after = change.before, change.after
    parts = [
        _moved("micro-batch", before.micro_batch_per_rank, after.micro_batch_per_rank),
        _moved("accumulation", before.accumulation_steps, after.accumulation_steps),
    ]
    if before.world_size != after.world_size:
        parts.append(_moved("ranks", before.world_size, after.world_size))
    if not after.ranks_known:
        batch = f"{before.global_batch} → {after.global_batch} samples per rank and step"
        parts.append(batch if change.changes_global else "global batch unchanged")
    elif not change.changes_global:
        parts.append(f"global batch {after.global_batch}{_unit(after)} unchanged")
    else:
        parts.append(f"global batch {before.global_batch} → {after.global_batch}{_unit(after)}")
    return ", ".join(parts)


def _moved(what: str, before: int, after: int) -> str:
    return f"{what} {before} unchanged" if before == after else f"{what} {before} → {after}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _unit(spec: BatchSpec) -> str:
    return " tokens" if spec.unit is BatchUnit.TOKENS else ""


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending. Above 10**12, surely a typo, return only those up to 10**6 and their cofactors."""
    small = [d for d in range(1, min(isqrt(number), MOST_TRIED) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _named(values: list[int], wanted: int, suggested: int | None = None) -> str:
    """List the few most helpful values: `suggested`, then the nearest at or below `wanted`, or else the smallest above it."""
    below = [v for v in reversed(values) if v <= wanted]
    shown = below[:NAMED_VALUES] or values[:NAMED_VALUES]
    if suggested in values:
        shown = [suggested, *(v for v in shown if v != suggested)]
    return ", ".join(str(v) for v in shown)


def _global_refusal(
    global_batch: int, chunk: int, world_size: int, tokens: int, micro_batch: int | None
) -> str:
    step = chunk * micro_batch if micro_batch else chunk
    lower = global_batch // step * step
    works = ", ".join(str(v) for v in (lower, lower + step) if v > 0)
    shape = _ranks(world_size) + (f" × {tokens} tokens" if tokens > 1 else "")
    return (
        f"global batch {global_batch} is not divisible by {chunk} ({shape}); global batch that works: {works}"
    )
