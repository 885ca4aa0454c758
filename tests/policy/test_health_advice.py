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
    text = f"the run continues after it could not write ({FULL}): what is trained since the last whole checkpoint would be lost; free space, or look at the folder's rights and mount"
    assert found == Advice("checkpoint_not_saved", text, 0)
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


LEAK = "look for tensors kept with their graph (loss without .item()), growing lists or caches"


@pytest.mark.parametrize(
    ("used", "total", "rise", "apart_s", "readings", "left"),
    [
        (85.0, 100.0, 0.5, 20.0, 30, "85.0 of 100.0 GiB, full in about 10 min"),
        (85.0, 100.0, 0.5, 20.0, 60, "85.0 of 100.0 GiB, full in about 10 min"),
        (101.0, 100.0, 0.5, 20.0, 30, "101.0 of 100.0 GiB, full in about 1 min"),
        (84.9, 100.0, 0.5, 20.0, 30, None),
        (85.0, 100.0, 0.5, 20.0, 29, None),
        (85.0, 100.0, 0.5, 19.9, 58, None),  # 29 of them are far enough apart
        (85.0, 100.0, 0.0001, 20.0, 60, None),  # it is full in hours
        (85.0, 100.0, 0.1666, 20.0, 30, None),
        (85.0, 100.0, 0.1668, 20.0, 30, "85.0 of 100.0 GiB, full in about 30 min"),
        (99.0, 0.0, 0.5, 20.0, 60, None),
        (99.0, None, 0.5, 20.0, 60, None),
    ],
)
def test_memory_that_grows_without_pause_is_told_near_its_limit(
    used: float, total: float | None, rise: float, apart_s: float, readings: int, left: str | None
) -> None:
    early = EarlySigns()
    device: list[Advice] = []
    host: list[Advice] = []
    limit = None if total is None else total * GIB
    for at in range(readings):
        now, t = (used - rise * (readings - 1 - at)) * GIB, apart_s * at
        memory = {"memory_used_bytes": now, "memory_total_bytes": limit}
        device = list(early.gpu("0", t, memory))
        host = list(early.machine(t, memory))
    text = f"grows without pause: {left}; {LEAK}"
    assert device == ([] if left is None else [Advice("gpu_memory_creeping", f"GPU 0 {text}")])
    assert host == ([] if left is None else [Advice("host_memory_creeping", f"host memory {text}")])


def test_memory_of_a_control_group_counts_in_place_of_the_machines() -> None:
    early = EarlySigns()
    for at in range(30):
        own = {"cgroup_used_bytes": (70.5 + 0.5 * at) * GIB, "cgroup_limit_bytes": 100 * GIB}
        found = list(
            early.machine(20.0 * at, {**own, "memory_used_bytes": GIB, "memory_total_bytes": 900 * GIB})
        )
    text = f"host memory grows without pause: 85.0 of 100.0 GiB, full in about 10 min; {LEAK}"
    assert found == [Advice("host_memory_creeping", text)]


def test_a_gpu_that_is_slowed_down_for_30_readings_is_told_once() -> None:
    early = EarlySigns()
    readings = [1.0] * 29 + [0.0] + [1.0] * 31
    found = [(at, each) for at, on in enumerate(readings) for each in early.gpu("3", 0.0, {"throttle": on})]
    text = "GPU 3 runs slower than asked for (thermal or power brake): nvidia-smi -q -d PERFORMANCE says why"
    assert found == [(59, Advice("gpu_throttled_3", text))]


@pytest.mark.parametrize(
    ("frees", "size", "told"),
    [
        ([10.0], 11, ["no further checkpoint fits on the disk (10.0 GiB free, 11.00 GiB each)"]),
        ([10.0], 10, []),
        ([10.0], 6, []),
        ([16.0, 10.0], 6, ["1 more checkpoint fit on the disk (10.0 GiB free, 6.00 GiB each)"]),
        ([13.0, 10.0], 6, ["1 more checkpoint fit on the disk (10.0 GiB free, 6.00 GiB each)"]),
        ([12.9, 10.0], 6, []),
        ([16.0, 10.0], 5, ["2 more checkpoints fit on the disk (10.0 GiB free, 5.00 GiB each)"]),
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
    what = "free some, or keep fewer (keep_checkpoints)"
    assert found == [Advice("disk_before_checkpoint", f"{text}: {what}") for text in told]
    assert list(EarlySigns().checkpoint(1)) == [], "nothing is known of the disk"


def data_bound(
    wait_s: float, step_s: float, util: float | None, gpus: int = 10, steps: int = 30
) -> list[Advice]:
    early = EarlySigns()
    for _ in range(gpus):
        list(early.gpu("0", 0.0, {"util_ratio": util}))
    values = {"step_time_s": step_s, "data_wait_s": wait_s}
    return [item for at in range(steps) for item in early.step(0, float(at), values)]


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
    help_ = "more data workers (num_workers), pin_memory and persistent_workers, or data prepared on a local disk, would help"
    assert data_bound(wait_s, 1.0, util, gpus) == ([Advice("data_bound", text + help_)] if text else [])
    assert data_bound(wait_s, 1.0, util, gpus, steps=29) == [], "one step fewer is too few"
    assert data_bound(wait_s, 0.0, util, gpus) == []
    assert data_bound(math.nan, 1.0, util, gpus) == []
    assert data_bound(wait_s, math.inf, util, gpus) == []


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


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("loss", 4.5, []),
        ("loss", 4.6, [Advice("loss_spike", "the loss rose to 4.6 from about 1: a lower learning rate, a longer warm-up or clipping (gradient_clip_val) helps; look at the data of these steps")]),
        ("grad_norm", 10.1, [Advice("grad_spike", "the gradient norm rose to 10.1 from about 1: NaN may follow; clip gradients, lower the learning rate")]),
    ],
)  # fmt: skip
def test_a_spike_is_8_spreads_above_what_was_usual(name: str, value: float, said: list[Advice]) -> None:
    early = EarlySigns()
    for at in range(60):
        list(early.step(0, float(at), {name: (1.0, 0.7, 1.3)[at % 3]}))
    assert [item for _ in range(3) for item in early.step(0, 99.0, {name: value})] == said
    assert not [item for _ in range(40) for item in EarlySigns().step(0, 99.0, {name: 0.0})]


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
