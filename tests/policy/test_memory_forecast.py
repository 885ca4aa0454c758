"""What a rank's own measurements say about its memory before it runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial, choose_smaller
from supervisor.policy.health.early_signs import Advice
from supervisor.policy.health.memory_forecast import MemoryForecast

GIB = 1 << 30
LIMIT = 80 * GIB


def records(
    lengths: Callable[[int], int],
    kept: Callable[[int], float] = lambda _step: 20.0,
    steps: int = 200,
    per_token: float = 0.0015,
    **more: int,
) -> Iterator[dict[str, object]]:
    """Yield the records of a rank with a batch of 16 sequences, one for each step. `kept` and `per_token` are in GiB."""
    peak = 0.0
    for step in range(1, steps + 1):
        length = lengths(step)
        peak = max(peak, kept(step) + per_token * 16 * length)
        yield {
            "kind": "step",
            "step": step,
            "steps": 1,
            "memory_peak_bytes": int(peak * GIB),
            "memory_now_bytes": int(kept(step) * GIB),
            "memory_reserved_bytes": int((peak + 1) * GIB),
            "memory_limit_bytes": LIMIT,
            "elements": 16 * length,
            "shapes": [[16, length], [16]],
            **more,
        }


def advice(forecast: MemoryForecast, found: Iterator[dict[str, object]], rank: int = 3) -> list[Advice]:
    return [one for record in found for one in forecast.add(rank, record)]


def ragged(step: int) -> int:
    """Lengths of 1,024 to 1,920 tokens, whose longest come late."""
    return 1024 + min(5 * step, 800) + step * 7919 % 97


def test_a_longer_batch_that_a_setting_allows_is_told_with_its_need() -> None:
    forecast = MemoryForecast()
    setting = {"kind": "setting", "name": "max_seq_len", "value": 2560}
    assert list(forecast.add(3, setting)) == []
    (told,) = advice(forecast, records(ragged))
    assert (told.code, told.rank) == ("memory_longer_batch", 3)
    assert told.text.endswith("16 × 2,560, which max_seq_len allows, needs about 81.4 GiB")
    assert "rank 3 peaked at" in told.text
    assert "of 80.0 GiB" in told.text


@pytest.mark.parametrize("most", [2048, 1024, 100_000])
def test_a_length_that_fits_or_that_is_no_longer_or_not_of_this_run_is_not_told(most: int) -> None:
    forecast = MemoryForecast()
    list(forecast.add(3, {"kind": "setting", "name": "max_length", "value": most}))
    assert advice(forecast, records(ragged)) == []


def test_a_line_is_not_continued_far_beyond_the_sizes_that_made_it() -> None:
    forecast = MemoryForecast()
    list(forecast.add(3, {"kind": "setting", "name": "max_length", "value": 8192}))
    assert advice(forecast, records(lambda step: 1000 + step % 100)) == []


def test_a_rank_that_drew_the_longest_batch_so_far_is_not_heavy() -> None:
    forecast = MemoryForecast()
    for record in records(lambda _step: 512):
        assert list(forecast.add(0, record)) == []
    assert advice(forecast, records(lambda _step: 2048)) == []


def test_memory_that_is_kept_after_each_step_is_told_with_the_step_at_which_it_is_full() -> None:
    (told,) = advice(MemoryForecast(), records(lambda _step: 1024, lambda step: 20 + 0.05 * step))
    assert told.code == "memory_climbs"
    assert "keeps 51 MiB more after each step" in told.text
    full_at = int(told.text.partition("full at about step ")[2].partition(";")[0].replace(",", ""))
    assert full_at == pytest.approx((0.97 * 80 - 20 - 0.0015 * 16 * 1024) / 0.05, rel=0.02)


def test_a_leak_that_the_run_does_not_live_to_see_is_not_told() -> None:
    leak = records(lambda _step: 1024, lambda step: 20 + 0.05 * step)
    assert advice(MemoryForecast(total_steps=400), leak) == []


def test_a_rank_that_needs_more_than_all_others_is_told_once() -> None:
    forecast = MemoryForecast()
    ranks = [records(lambda _step: 1024, lambda _step, more=more: 20.0 + more) for more in (0, 0, 12, 0)]  # type: ignore[misc]
    told = [
        one
        for each in zip(*ranks, strict=True)
        for rank, record in enumerate(each)
        for one in forecast.add(rank, record)
    ]
    assert [(one.code, one.rank) for one in told] == [("memory_heavy_rank", 2)]
    assert "the others 44.6 GiB" in told[0].text


def test_fragmented_memory_is_told_with_the_setting() -> None:
    reserved = records(lambda _step: 1024, memory_reserved_bytes=76 * GIB)
    (told,) = advice(MemoryForecast(), reserved)
    assert told.code == "memory_fragmented"
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in told.text


def test_an_evaluation_that_needs_more_than_training_is_told() -> None:
    def run() -> Iterator[dict[str, object]]:
        for record in records(lambda _step: 1024, steps=100):
            if record["step"] == 50:
                record |= {"evaluation_s": 3.0}
            if int(str(record["step"])) >= 50:
                record |= {"memory_peak_bytes": 75 * GIB}
            yield record

    (told,) = advice(MemoryForecast(), run())
    assert told.code == "memory_evaluation"
    assert "peaked at 75.0 GiB of 80.0 GiB in an evaluation, at 44.6 GiB in training" in told.text


@pytest.mark.parametrize(
    "lengths",
    [lambda _step: 2048, lambda step: [512, 1024, 1536, 2048][step % 4], lambda step: 2048 if step < 4 else 1024],
    ids=["constant", "bucketed", "warm-up"],
)  # fmt: skip
def test_a_run_that_stays_within_its_memory_is_told_nothing(lengths: Callable[[int], int]) -> None:
    assert advice(MemoryForecast(), records(lengths, lambda _step: 27.0)) == []


def test_a_batch_only_a_little_larger_than_any_so_far_is_told_while_batches_still_grow() -> None:
    curriculum = records(lambda step: 1024 + 6 * step, lambda _step: 25.0)
    (told,) = advice(MemoryForecast(), curriculum)
    assert told.code == "memory_longer_batch"
    assert "more elements is the largest that fits: limit the length of a batch" in told.text


def test_a_smaller_batch_is_chosen_by_the_line_of_the_attempt_itself() -> None:
    spec = BatchSpec(micro_batch_per_rank=16, accumulation_steps=1, world_size=4)
    failed = MemoryTrial(
        16, fitted=False, peak_bytes=81 * GIB, capacity_bytes=LIMIT, at_zero_bytes=44.0 * GIB, per_sample_bytes=4.0 * GIB
    )  # fmt: skip
    choice = choose_smaller(spec, trials=[failed])
    assert choice is not None
    assert (choice.batch.micro_batch_per_rank, choice.batch.accumulation_steps) == (8, 2)
    assert choice.how == "predicted from the batches of the attempt to need 76.0 GiB of 80.0 GiB"
