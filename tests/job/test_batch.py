from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.batch import (
    BatchSpec,
    BatchUnit,
    MemoryPoint,
    describe,
    resolve,
    with_micro_batch,
    with_world_size,
)
from supervisor.job.errors import JobError
from supervisor.job.memory_fit import memory_point

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
