from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.batch import (
    BatchChange,
    BatchSpec,
    BatchUnit,
    MemoryPoint,
    candidates,
    describe,
    describe_change,
    factors,
    resolve,
    with_micro_batch,
    with_world_size,
)
from supervisor.job.errors import JobError
from supervisor.job.memory_fit import (
    FIT_SHARE,
    Measure,
    MemoryTrial,
    choose_smaller,
    line_through,
    memory_point,
)

GIB = 2**30
specs = st.builds(
    BatchSpec,
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 16),
    st.sampled_from(BatchUnit),
    st.sampled_from([1, 7, 256, 2048]),
)


@settings(deadline=None)
@given(specs, st.integers(1, 64))
def test_fewer_ranks_keep_the_global_batch_or_are_refused(spec: BatchSpec, ranks: int) -> None:
    samples = spec.micro_batch_per_rank * spec.accumulation_steps * spec.world_size
    if samples % ranks:
        with pytest.raises(JobError, match=f"does not divide by {ranks} ranks"):
            with_world_size(spec, ranks)
        return
    fewer = with_world_size(spec, ranks)
    assert (fewer.world_size, fewer.global_batch) == (ranks, spec.global_batch)
    assert fewer.micro_batch_per_rank <= spec.micro_batch_per_rank, "memory would not be enough"


def test_the_memory_message_of_pytorch_becomes_a_point() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "24.00 GiB of which 1.00 GiB is free. Process 4711 has 3.00 GiB memory in use. Including non-PyTorch memory, "
        "this process has 20.00 GiB memory in use. Of the allocated memory 18.00 GiB is allocated by PyTorch, and "
        "1.50 GiB is reserved by PyTorch but unallocated."
    )
    point = memory_point(text, 16)
    assert point == MemoryPoint(16, 18 * GIB, 2 * GIB, 21 * GIB)
    assert (
        memory_point("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8388608 bytes.", 16)
        is None
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"micro_batch": 0}, "micro-batch 0 is not possible: it must be at least 1"),
        ({"global_batch": 0}, "global batch 0 is not possible: it must be at least 1"),
        ({"micro_batch": 1, "accumulation": 0}, "accumulation 0 is not possible: it must be at least 1"),
        ({"micro_batch": 1, "world_size": 0}, "world size 0 is not possible: it must be at least 1"),
        ({"micro_batch": 1, "unit": BatchUnit.TOKENS, "tokens_per_sample": 0}, "tokens per sample 0 is not possible: it must be at least 1"),
        ({}, "no batch size is given: name a micro-batch or a global batch"),
        ({"global_batch": 7}, "global batch 7 is not divisible by 2 (2 ranks); global batch that works: 6, 8"),
        ({"global_batch": 1}, "global batch 1 is not divisible by 2 (2 ranks); global batch that works: 2"),
        ({"global_batch": 7, "micro_batch": 2}, "global batch 7 is not divisible by 2 (2 ranks); global batch that works: 4, 8"),
        ({"global_batch": 30, "unit": BatchUnit.TOKENS, "tokens_per_sample": 10}, "global batch 30 is not divisible by 20 (2 ranks × 10 tokens); global batch that works: 20, 40"),
        ({"global_batch": 12, "accumulation": 4}, "global batch 12 is 6 samples a rank, which accumulation 4 does not divide; accumulation that works: 3, 2, 1"),
        ({"global_batch": 12, "micro_batch": 4}, "micro-batch 4 × 2 ranks = 8 does not divide global batch 12; micro-batch that works: 3, 2, 1"),
        ({"global_batch": 120, "micro_batch": 4, "unit": BatchUnit.TOKENS, "tokens_per_sample": 10}, "micro-batch 4 × 10 tokens × 2 ranks = 80 does not divide global batch 120; micro-batch that works: 3, 2, 1"),
        ({"global_batch": 16, "micro_batch": 2, "accumulation": 3}, "micro-batch 2 × accumulation 3 × 2 ranks is not global batch 16: accumulation must be 4, or leave it out"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_said_with_what_does(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as refused:
        resolve(**{"world_size": 2, **sizes})
    assert refused.value.message == message


def test_a_batch_is_a_product() -> None:
    assert describe(BatchSpec(8, 4, 2)) == "8 × accumulation 4 × 2 ranks = global batch 64"
    assert describe(BatchSpec(8, 4, 1)) == "8 × accumulation 4 × 1 rank = global batch 32"
    tokens = BatchSpec(8, 4, 1, BatchUnit.TOKENS, 10)
    assert describe(tokens) == "8 × 10 tokens × accumulation 4 × 1 rank = global batch 320 tokens"
    with pytest.raises(JobError) as refused:
        with_micro_batch(BatchSpec(8, 1, 2), 3)
    assert refused.value.message == (
        "micro-batch 3 does not divide the 8 samples a rank takes a step (global batch 16, 2 ranks); "
        "micro-batch that works: 2, 1"
    )
    with pytest.raises(JobError) as refused:
        with_micro_batch(BatchSpec(1, 1, 1), 3)
    assert "the 1 sample a rank takes a step (global batch 1, 1 rank);" in refused.value.message


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (BatchSpec(16, 2, 2), BatchSpec(8, 4, 2), "micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged"),
        (BatchSpec(16, 2, 2), BatchSpec(8, 2, 2), "micro-batch 16 → 8, accumulation 2 unchanged, global batch 64 → 32"),
        (BatchSpec(4, 1, 2), BatchSpec(4, 2, 1), "micro-batch 4 unchanged, accumulation 1 → 2, ranks 2 → 1, global batch 8 unchanged"),
        (BatchSpec(4, 1, 1, BatchUnit.TOKENS, 8), BatchSpec(2, 2, 1, BatchUnit.TOKENS, 8), "micro-batch 4 → 2, accumulation 1 → 2, global batch 32 tokens unchanged"),
        (BatchSpec(4, 1, 1, ranks_known=False), BatchSpec(2, 2, 1, ranks_known=False), "micro-batch 4 → 2, accumulation 1 → 2, global batch unchanged"),
        (BatchSpec(4, 1, 1, ranks_known=False), BatchSpec(2, 1, 1, ranks_known=False), "micro-batch 4 → 2, accumulation 1 unchanged, 4 → 2 samples per rank and step"),
    ],
)  # fmt: skip
def test_a_change_of_the_batch_is_one_line(before: BatchSpec, after: BatchSpec, text: str) -> None:
    assert describe_change(BatchChange(before, after)) == text
    assert (
        factors(after)
        == f"micro-batch {after.micro_batch_per_rank} × accumulation {after.accumulation_steps}"
    )


def failed(micro: int, peak: int | None = None, capacity: int | None = None) -> MemoryTrial:
    return MemoryTrial(micro, fitted=False, peak_bytes=peak, capacity_bytes=capacity)


def fitted(micro: int, peak: int | None = None, capacity: int | None = None) -> MemoryTrial:
    return MemoryTrial(micro, fitted=True, peak_bytes=peak, capacity_bytes=capacity)


def chosen(
    spec: BatchSpec, *trials: MemoryTrial, point: MemoryPoint | None = None, minimum: int = 1
) -> int | None:
    choice = choose_smaller(spec, point, trials, minimum)
    return None if choice is None else choice.batch.micro_batch_per_rank


def test_two_measured_micro_batches_make_a_line_which_beats_the_point() -> None:
    # 4 GiB base + 1 GiB a sample; the point, whose base is not known, would allow 8 only.
    trials = (fitted(4, 8 * GIB, 20 * GIB), failed(24, 28 * GIB, 20 * GIB))
    point = MemoryPoint(24, allocated_bytes=27 * GIB, tried_bytes=1 * GIB, capacity_bytes=16 * GIB)
    assert chosen(BatchSpec(24, 2, 1), point=point) == 12
    choice = choose_smaller(BatchSpec(24, 2, 1), point, trials)
    assert choice is not None
    assert choice.batch.micro_batch_per_rank == 12
    assert "2 measured micro-batches" in choice.how
    line = line_through(trials)
    assert line is not None
    assert line.per_sample == GIB
    assert line.at_zero == 4 * GIB


def test_measures_are_never_mixed_and_memory_that_does_not_grow_is_no_line() -> None:
    other = MemoryTrial(4, fitted=True, peak_bytes=8 * GIB, capacity_bytes=20 * GIB, measure=Measure.DEVICE)
    assert line_through([other, failed(24, 28 * GIB, 20 * GIB)]) is None
    assert line_through([fitted(4, 8 * GIB, 20 * GIB), fitted(8, 8 * GIB, 20 * GIB)]) is None
    assert line_through([fitted(4, 8 * GIB), fitted(8, 9 * GIB)]) is None, "no capacity, no line"


@given(
    per_rank=st.sampled_from([48, 64, 96, 60]),
    unit=st.integers(1, 50),
    base=st.integers(0, 2000),
    limit=st.integers(1, 60),
    with_line=st.booleans(),
)
def test_the_walk_ends_at_a_micro_batch_that_fits_and_is_exact(
    per_rank: int, unit: int, base: int, limit: int, with_line: bool
) -> None:
    """A machine whose memory is base + unit x micro-batch: the walk never rises, and its end fits."""
    capacity = base + unit * limit
    spec = BatchSpec(per_rank, 1, 1)
    trials: list[MemoryTrial] = []
    if with_line:
        trials = [fitted(1, base + unit, capacity), failed(per_rank, base + unit * per_rank, capacity)]
    while base + unit * spec.micro_batch_per_rank > capacity:
        needed = base + unit * spec.micro_batch_per_rank
        trials.append(failed(spec.micro_batch_per_rank, needed, capacity))
        point = MemoryPoint(spec.micro_batch_per_rank, needed, 0, capacity, base)
        choice = choose_smaller(spec, point, trials)
        assert choice is not None
        assert choice.batch.micro_batch_per_rank < spec.micro_batch_per_rank
        assert choice.batch.global_batch == per_rank
        spec = choice.batch
    if with_line:
        best = max((m for m in candidates(spec) if base + unit * m <= FIT_SHARE * capacity), default=1)
        assert spec.micro_batch_per_rank >= best


def test_why_a_micro_batch_was_chosen() -> None:
    def how(spec: BatchSpec, *trials: MemoryTrial, point: MemoryPoint | None = None) -> str:
        choice = choose_smaller(spec, point, trials)
        assert choice is not None
        return choice.how

    point = MemoryPoint(16, allocated_bytes=15 * GIB, tried_bytes=GIB, capacity_bytes=10 * GIB)
    assert how(BatchSpec(16, 1, 1), point=point) == "it needs at least 8.0 GiB of 10.0 GiB"
    line = (fitted(4, 8 * GIB, 20 * GIB), failed(24, 28 * GIB, 20 * GIB))
    assert (
        how(BatchSpec(24, 2, 1), *line)
        == "predicted from 2 measured micro-batches to need 16.0 GiB of 20.0 GiB"
    )
    assert how(BatchSpec(16, 1, 1), fitted(4)) == "it fitted before"


@pytest.mark.parametrize(
    ("micro", "steps", "expected"), [(7, 1, 3), (11, 1, 5), (9, 1, 4), (16, 1, 8), (12, 2, 6), (2, 1, 1)]
)
def test_a_smaller_global_batch_takes_half_which_need_not_divide(
    micro: int, steps: int, expected: int
) -> None:
    """The only divisor of 7 is 1, and batch norm fails on one sample."""
    choice = choose_smaller(BatchSpec(micro, steps, 1), smaller_global=True)
    assert choice is not None
    assert (choice.batch.micro_batch_per_rank, choice.batch.accumulation_steps) == (expected, steps)
    point = MemoryPoint(micro, 6 << 30, 2 << 30, 8 << 30)
    assert choose_smaller(BatchSpec(micro, steps, 1), point, smaller_global=True) is not None
    assert choose_smaller(BatchSpec(7, 1, 1), minimum=4, smaller_global=True) is None
