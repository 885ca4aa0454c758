"""Early signs, creeping levels, stragglers and stalls at their bounds: one reading fewer, one byte less says nothing."""

from __future__ import annotations

import math
import random

import pytest

from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.policy.health.early_signs import (
    Advice,
    EarlySigns,
    unexpected_memory,
)
from supervisor.policy.health.straggler import LEAST, Stragglers
from supervisor.run.records import FailureClass

GIB = float(1 << 30)


def test_a_healthy_training_gets_no_advice() -> None:
    early, rng = EarlySigns(), random.Random(7)
    found: list[Advice] = []
    for step in range(2000):
        loss = 6 * math.exp(-step / 500) + 1 + rng.gauss(0, 0.1)
        grad = abs(rng.gauss(1.0, 0.4)) * (8 if rng.random() < 0.01 else 1)
        values = {"step": step, "loss": loss, "grad_norm": grad, "step_time_s": 0.2, "data_wait_s": 0.01}
        found += early.step(0, 0.2 * step, {**values, "loss_scale": 65536.0 / 2 ** (step % 700 == 3)})
        cache = {"memory_used_bytes": min(40 + 4 * step, 76) * GIB, "memory_total_bytes": 80 * GIB}
        found += early.gpu("0", 20.0 * step, {"util_ratio": 0.97, "throttle": 0.0, **cache})
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


WORK, DATA = "on its own work, as measured in the ranks", "fetching data"


@pytest.mark.parametrize(
    ("measured", "slow", "told"),
    [
        ({0: (0.35, 0.05, 0.0), 1: (0.35, 0.34, 0.0)}, 1, f"0.29 s in every step of 0.35 s: it spends them {WORK}"),
        ({0: (0.35, 0.05, 0.0), 1: (0.35, 0.05, 0.0), 2: (0.34, 0.33, 0.0)}, 2, f"0.28 s in every step of 0.35 s: it spends them {WORK}"),
        ({0: (1.0, 0.0, 0.0), 1: (1.0, 0.5, 0.25)}, 1, f"0.5 s in every step of 1 s: it spends them {WORK}"),
        ({0: (1.0, 0.0, 0.0), 1: (1.0, 0.5, 0.26)}, 1, f"0.5 s in every step of 1 s: it spends them {DATA}"),
        ({0: (1.0, None, 0.1), 1: (1.0, None, 0.5)}, 1, f"0.4 s in every step of 1 s: it spends them {DATA}"),
        ({0: (1.0, 0.1, None), 1: (1.0, 0.5, None)}, 1, f"0.4 s in every step of 1 s: it spends them {WORK}"),
        ({0: (1.0, None, None), 1: (1.0, None, None)}, None, ""),
        ({0: (None, 0.1, 0.0), 1: (None, 0.5, 0.0)}, None, ""),
        ({0: (0.35, 0.05, 0.0), 1: (0.35, 0.11, 0.0)}, None, ""),  # less than a fifth
        ({0: (0.0, 0.0, 0.0), 1: (0.0, 0.0, 0.0)}, None, ""),
        ({0: (0.8, 0.05, 0.0), 1: (1.0, 1.0, 0.0)}, 1, f"0.95 s in every step of 0.9 s: it spends them {WORK}"),
        ({0: (0.79, 0.05, 0.0), 1: (1.0, 1.0, 0.0)}, None, ""),  # they do not wait for each other
        ({0: (0.35, 0.34, 0.0)}, None, ""),
    ],
)  # fmt: skip
def test_the_rank_whose_own_part_of_a_step_is_measured_as_longer_is_named(
    measured: dict[int, tuple[float | None, ...]], slow: int | None, told: str
) -> None:
    ranks = Stragglers()
    for rank, values in measured.items():
        row = dict(zip(("step_time_s", "compute_s", "data_wait_s"), values, strict=True))
        for _ in range(LEAST):
            assert ranks.find() is None
            ranks.measured(rank, {k: v for k, v in row.items() if k != "compute_s" or v is not None})
    found = ranks.find()
    assert (found.advice if found is not None else None) == (
        None if slow is None else Advice("straggler", f"rank {slow} holds the others up by {told}", slow)
    )


def test_a_rank_once_named_stays_named_a_little_below_the_bound() -> None:
    for own_s, stays in ((0.16, True), (0.14, False)):
        ranks = Stragglers()
        for own in (0.5, own_s):
            for _ in range(LEAST):
                ranks.measured(0, {"step_time_s": 1.0, "compute_s": 0.0})
                ranks.measured(1, {"step_time_s": 1.0, "compute_s": own})
            found = ranks.find()
        assert (found is not None) is stays
        assert (fed({0: 0.0, 1: own_s}).find() is not None) is False, "never named before"


def test_steps_around_an_evaluation_are_no_measure() -> None:
    stragglers = Stragglers()
    for step in range(100):
        for rank in range(2):
            values = {"step": float(step), "step_time_s": 9.9 if rank else 0.1}
            stragglers.step(rank, step * 10.0, values)
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


# -- early signs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "total", "warned"),
    [(84.9, 100, False), (85.0, 100, True), (99.0, 0, False), (99.0, None, False)],
)
def test_memory_is_near_its_limit_from_85_percent(used: float, total: float | None, warned: bool) -> None:
    early = EarlySigns()
    found: list[Advice] = []
    for at in range(60):
        now = (used - 0.0001 * (59 - at)) * GIB
        values = {"memory_used_bytes": now, "memory_total_bytes": None if total is None else total * GIB}
        found += early.gpu("0", 20.0 * at, values)
    assert found == [], "so slow that it is full in hours"
    steep = EarlySigns()
    found = []
    for at in range(60):
        now = (used - 0.5 * (59 - at)) * GIB
        values = {"memory_used_bytes": now, "memory_total_bytes": None if total is None else total * GIB}
        found += steep.gpu("0", 20.0 * at, values)
    assert bool(found) is warned


@pytest.mark.parametrize(
    ("frees", "size", "told"),
    [
        ([10.0], 11, ["no further checkpoint fits"]),
        ([10.0], 10, []),
        ([10.0], 6, []),
        ([16.0, 10.0], 6, ["1 more checkpoint fit "]),
        ([13.0, 10.0], 6, ["1 more checkpoint fit "]),
        ([12.9, 10.0], 6, []),
        ([16.0, 10.0], 5, ["2 more checkpoints fit"]),
        ([16.0, 9.0], 3, []),
        ([10.0], 0, []),
    ],
)
def test_how_many_checkpoints_fit_where_old_ones_are_kept(
    frees: list[float], size: int, told: list[str]
) -> None:
    early = EarlySigns()
    found: list[Advice] = []
    for free in frees:
        list(early.machine(0.0, {"disk_free_bytes": free * GIB}))
        found += early.checkpoint(int(size * GIB))
    assert len(found) == len(told)
    for item, text in zip(found, told, strict=True):
        assert text.strip() in item.text
    assert list(EarlySigns().checkpoint(1)) == [], "nothing is known of the disk"


def data_bound(wait_s: float, step_s: float, util: float | None, gpus: int = 10, steps: int = 30) -> str:
    early = EarlySigns()
    text = ""
    for _ in range(gpus):
        list(early.gpu("0", 0.0, {"util_ratio": util}))
    for at in range(steps):
        for item in early.step(0, float(at), {"step_time_s": step_s, "data_wait_s": wait_s}):
            text = item.text
    return text


@pytest.mark.parametrize(
    ("wait_s", "util", "gpus", "text"),
    [
        (0.51, None, 10, "51 % of a step is waiting for data: "),
        (0.50, None, 10, ""),
        (0.31, 0.59, 10, "31 % of a step is waiting for data, the GPUs are busy 59 % of the time: "),
        (0.31, 0.60, 10, ""),
        (0.30, 0.10, 10, ""),
        (0.31, 0.10, 9, ""),
    ],
)
def test_a_run_waits_for_data(wait_s: float, util: float | None, gpus: int, text: str) -> None:
    said = data_bound(wait_s, 1.0, util, gpus)
    assert said.startswith(text)
    assert bool(said) is bool(text)
    assert data_bound(wait_s, 1.0, util, gpus, steps=29) == "", "one step fewer is too few"
    assert data_bound(wait_s, 0.0, util, gpus) == ""
    assert data_bound(math.nan, 1.0, util, gpus) == ""


@pytest.mark.parametrize(("steps", "high", "told"), [(30, 3, 1), (29, 3, 0), (30, 2, 0), (30, 9, 1)])
@pytest.mark.parametrize(("name", "factor"), [("loss", 2.0), ("grad_norm", 10.0)])
def test_a_spike_lasts_three_steps_and_is_far_above_what_was_usual(
    name: str, factor: float, steps: int, high: int, told: int
) -> None:
    def spikes(value: float, rank: int | None = 0) -> int:
        early = EarlySigns()
        for at in range(steps):
            list(early.step(rank, float(at), {name: 1.0}))
        return sum(len(list(early.step(rank, 99.0, {name: value}))) for _ in range(high))

    assert spikes(factor * 1.01) == told
    assert spikes(factor * 1.01, rank=None) == told
    assert spikes(factor * 1.01, rank=1) == 0, "the numbers of one rank are enough"
    assert spikes(factor) == 0
    assert spikes(math.inf) == 0, "that is a failure, no sign of one"


# -- stragglers ---------------------------------------------------------------------------------------


def fed(
    own_s: dict[int, float], *, steps: int = LEAST + 1, gap_s: float = 1.0, data: bool = False
) -> Stragglers:
    """Ranks whose steps end together; each spends `own_s` before it comes, of `gap_s`."""
    found = Stragglers()
    for step in range(steps):
        for rank, own in own_s.items():
            took = gap_s if data else gap_s - own
            values = {"step": float(step), "step_time_s": took, "data_wait_s": own if data else 0.0}
            found.step(rank, step * gap_s, values)
    return found


@pytest.mark.parametrize(
    ("own_s", "steps", "who"),
    [
        ({0: 0.0, 1: 0.25}, LEAST + 1, 1),
        ({0: 0.0, 1: 0.2421875}, LEAST + 1, None),
        ({0: 0.0, 1: 1.0}, LEAST, None),
        ({0: 1.0}, LEAST + 1, None),
        ({0: 0.25, 1: 1.0, 2: 0.25}, LEAST + 1, 1),
    ],
)
def test_a_rank_holds_the_others_up_from_a_fifth_of_a_step_on(
    own_s: dict[int, float], steps: int, who: int | None
) -> None:
    for data in (False, True):
        slow = fed(own_s, steps=steps, gap_s=1.25, data=data).find()
        assert (slow.rank if slow is not None else None) == who
        if slow is not None:
            assert ("fetching data" if data else "on its own work") in slow.advice.text
