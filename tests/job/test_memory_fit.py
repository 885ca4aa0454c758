"""Which micro-batch fits, from the best knowledge there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.batch import BatchSpec, MemoryPoint, candidates
from supervisor.job.memory_fit import FIT_SHARE, Measure, MemoryTrial, choose_smaller, line_through

GIB = 2**30


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
