"""Early signs and stragglers: said when they are there, not said of healthy runs, and not repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.policy.health.early_signs import Advice, EarlySigns, unexpected_memory
from supervisor.policy.health.straggler import WINDOW, Stragglers
from supervisor.run.failures import FailureClass

GIB = float(1 << 30)


def codes(advice: Iterable[Advice]) -> set[str]:
    return {item.code for item in advice}


def test_memory_that_creeps_to_the_limit_is_told_and_a_cache_that_fills_is_not() -> None:
    early = EarlySigns()
    found: list[Advice] = []
    for at in range(60):
        used = (60 + 0.3 * at) * GIB
        found += early.gpu("0", 20.0 * at, {"memory_used_bytes": used, "memory_total_bytes": 80 * GIB})
    assert "gpu_memory_creeping" in codes(found)
    assert "min" in found[-1].text
    cache = EarlySigns()
    quiet: list[Advice] = []
    for at in range(60):
        used = min(40 + 4 * at, 76) * GIB
        quiet += cache.gpu("0", 20.0 * at, {"memory_used_bytes": used, "memory_total_bytes": 80 * GIB})
    assert quiet == []


def test_a_healthy_training_gets_no_advice() -> None:
    early, rng = EarlySigns(), random.Random(7)
    found: list[Advice] = []
    for step in range(2000):
        loss = 6 * math.exp(-step / 500) + 1 + rng.gauss(0, 0.1)
        grad = abs(rng.gauss(1.0, 0.4)) * (8 if rng.random() < 0.01 else 1)
        values = {"step": step, "loss": loss, "grad_norm": grad, "step_time_s": 0.2, "data_wait_s": 0.01}
        found += early.step(0, 0.2 * step, {**values, "loss_scale": 65536.0 / 2 ** (step % 700 == 3)})
        found += early.gpu(
            "0", 0.2 * step, {"util_ratio": 0.97, "temperature_c": 70.0 + rng.random() * 10, "throttle": 0.0}
        )
        found += early.machine(
            0.2 * step,
            {"memory_used_bytes": 8 * GIB, "memory_total_bytes": 64 * GIB, "disk_free_bytes": 500 * GIB},
        )
        if step % 100 == 0:
            found += early.checkpoint(int(2 * GIB))
    assert found == []


FULL = "OSError: [Errno 28] No space left on device: '/ckpt/step_40.pt'"


def test_a_checkpoint_that_could_not_be_saved_is_told_once_the_run_goes_on() -> None:
    early = EarlySigns()
    assert not list(early.step(0, 9.0, {"step": 40.0}))
    early.complaint(0, 10.0, FailureClass.DISK_FULL, FULL)
    assert not list(early.step(0, 10.5, {"step": 40.0})), (
        "read together with the complaint: nobody knows which came first"
    )
    assert not list(early.step(3, 14.0, {"step": 41.0})), (
        "another rank may come to one more step before all end"
    )
    (found,) = early.step(0, 14.0, {"step": 41.0})
    assert (found.code, found.rank) == ("checkpoint_not_saved", 0)
    assert FULL in found.text
    assert not list(early.step(0, 20.0, {"step": 42.0})), "once"


def feed(stragglers: Stragglers, *, slow: int | None, data_s: float = 0.0, outside_s: float = 0.0) -> None:
    """Ranks in step with each other, as DDP makes them: all gaps alike; the others wait within their step."""
    rng, now, extra = random.Random(1), 0.0, data_s + outside_s
    for step in range(WINDOW + 1):
        now += 0.2 + extra + rng.random() * 0.01
        for rank in range(4):
            took = 0.2 + extra - (outside_s if rank == slow else 0.0)
            wait = data_s if rank == slow else 0.001
            values = {"step": float(step), "step_time_s": took, "data_wait_s": wait}
            stragglers.step(rank, now + rank * 0.0001, values, from_telemetry=True)


def test_the_culprit_is_the_one_that_waits_least() -> None:
    outside = Stragglers()
    feed(outside, slow=2, outside_s=0.5)
    found = outside.find()
    assert found is not None
    assert found.rank == 2
    assert "outside of the step" in found.advice.text
    data = Stragglers()
    feed(data, slow=1, data_s=0.3)
    found = data.find()
    assert found is not None
    assert (found.rank, "fetching data" in found.advice.text) == (1, True)


@pytest.mark.parametrize(
    ("looks", "slow"),
    [
        ([1] * 7 + [None] * 3, 1),
        ([1] * 5 + [None] * 4 + [0], 1),
        ([1] * 4 + [None] * 6, None),  # too seldom
        ([1] * 5 + [0] * 2 + [None] * 3, None),  # now the one, now the other
        ([1] * 9, None),  # too few looks
        ([1] * 10 + [None] * 6, None),  # over
    ],
)
@pytest.mark.parametrize("reporting", [1, 2])
def test_the_rank_that_looks_at_the_stacks_find_elsewhere_is_named(
    looks: list[int | None], slow: int | None, reporting: int
) -> None:
    ranks = Stragglers()
    for step in range(WINDOW + 3):
        for rank in range(reporting):
            ranks.step(rank, 0.5 * step, {"step": float(step)}, from_telemetry=False)
    for found_rank in looks:
        ranks.looked(found_rank, "train.py:6")
    found = ranks.find()
    assert (found.rank if found is not None else None) == slow
    if found is not None:
        assert (
            f"in {looks.count(1)} of 10 looks at the stacks they waited, and it was at train.py:6"
            in found.advice.text
        )
        assert found.lost_s == pytest.approx(0.05 * looks.count(1))


def printed(took: dict[int, float], *, late_s: dict[int, float], every: int = 1) -> Stragglers:
    """Ranks that print step times of their own kind, in lockstep: a step of 1 s, its lines so much after its end."""
    found = Stragglers()
    for step in range(every, (WINDOW + 3) * every, every):
        for rank, took_s in took.items():
            values = {"step": float(step), "step_time_s": took_s}
            found.step(rank, step + late_s.get(rank, 0.0), values, from_telemetry=False)
    return found


def test_printed_step_times_that_differ_alone_name_nobody() -> None:
    """Rank 0 may be slow and measure its own work, or wait for rank 1 within what it measures."""
    assert printed({0: 1.0, 1: 0.3}, late_s={}).find() is None


def test_steps_around_an_evaluation_are_no_measure() -> None:
    stragglers = Stragglers()
    for step in range(100):
        for rank in range(2):
            values = {"step": float(step), "step_time_s": 0.1}
            stragglers.step(rank, step * (10.0 if rank else 10.1), values, from_telemetry=True)
        stragglers.pause()
    assert stragglers.find() is None


@pytest.mark.parametrize(
    ("peak_gib", "measure", "capacity_gib", "text"),
    [
        (20, Measure.ALLOCATOR, 32, None),  # 65 % of 32 are 20.8
        (25.9, Measure.DEVICE, 32, None),
        (15, Measure.ALLOCATOR, 32, "15.0 GiB (47 %) at most where 20.8 GiB (65 %) were expected: a larger"),
        (27, Measure.DEVICE, None, "27.0 GiB at most where 20.8 GiB were expected: less room"),
        (3, Measure.RESIDENT, 32, None),
        (None, Measure.ALLOCATOR, 32, None),
    ],
)
def test_memory_is_held_against_what_the_configuration_expects(
    peak_gib: float | None, measure: Measure, capacity_gib: int | None, text: str | None
) -> None:
    peak = None if peak_gib is None else int(peak_gib * 2**30)
    capacity = None if capacity_gib is None else capacity_gib * 2**30
    trial = MemoryTrial(8, fitted=True, peak_bytes=peak, capacity_bytes=capacity, measure=measure)
    advice = unexpected_memory(trial, int(20.8 * 2**30))
    assert (advice is None) == (text is None)
    if advice is not None and text is not None:
        assert text in advice.text
