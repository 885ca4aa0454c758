"""Early signs, creeping levels, stragglers and stalls at their bounds: one reading fewer, one byte less says nothing."""

from __future__ import annotations

import math

import pytest

from supervisor.policy.health.early_signs import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    POINTS,
    SPACING_S,
    Advice,
    Creep,
    EarlySigns,
    Quota,
)
from supervisor.policy.health.straggler import WINDOW, Stragglers

GIB = float(1 << 30)


# -- levels and typical values ----------------------------------------------------------------------


def creeping(count: int) -> Creep:
    level = Creep()
    for at in range(count):
        level.add(at * SPACING_S, 100 + at)
    return level


@pytest.mark.parametrize(
    ("count", "known"), [(POINTS // 2 - 1, False), (POINTS // 2, True), (POINTS * 3, True)]
)
def test_a_level_creeps_once_there_are_half_of_its_readings(count: int, known: bool) -> None:
    left_s = creeping(count).full_in_s(1000.0)
    assert (left_s is not None) is known
    if left_s is not None:
        assert left_s == pytest.approx((1000 - (99 + count)) * 20.0)


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


def test_new_memory_errors_are_told_and_old_ones_are_not() -> None:
    early = EarlySigns()
    told = [len(list(early.gpu("0", 0.0, {"ecc_uncorrected": count}))) for count in (5.0, 5.0, 6.0, 6.0, 7.0)]
    assert told == [0, 0, 1, 0, 1]


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


def test_advice_is_said_again_after_its_pause_which_doubles_up_to_a_day() -> None:
    quota = Quota()
    assert quota.allows("x", 0.0)
    assert not quota.allows("x", FIRST_PAUSE_S - 1)
    assert quota.allows("x", FIRST_PAUSE_S)
    assert not quota.allows("x", 3 * FIRST_PAUSE_S - 1)
    assert quota.allows("x", 3 * FIRST_PAUSE_S)
    t = 3 * FIRST_PAUSE_S
    for _ in range(9):
        t += LONGEST_PAUSE_S
        assert quota.allows("x", t)
    told = Quota()
    told.said("x", 0.0)
    assert not told.allows("x", FIRST_PAUSE_S - 1)
    assert told.allows("x", FIRST_PAUSE_S)


# -- stragglers ---------------------------------------------------------------------------------------


def fed(
    own_s: dict[int, float], *, steps: int = WINDOW + 1, gap_s: float = 1.0, data: bool = False
) -> Stragglers:
    """Ranks whose steps end together; each spends `own_s` before it comes, of `gap_s`."""
    found = Stragglers()
    for step in range(steps):
        for rank, own in own_s.items():
            took = gap_s if data else gap_s - own
            values = {"step": float(step), "step_time_s": took, "data_wait_s": own if data else 0.0}
            found.step(rank, step * gap_s, values, from_telemetry=True)
    return found


@pytest.mark.parametrize(
    ("own_s", "steps", "who"),
    [
        ({0: 0.0, 1: 0.25}, WINDOW + 1, 1),
        ({0: 0.0, 1: 0.2421875}, WINDOW + 1, None),
        ({0: 0.0, 1: 1.0}, WINDOW, None),
        ({0: 1.0}, WINDOW + 1, None),
        ({0: 0.25, 1: 1.0, 2: 0.25}, WINDOW + 1, 1),
    ],
)
def test_a_rank_holds_the_others_up_from_a_fifth_of_a_step_on(
    own_s: dict[int, float], steps: int, who: int | None
) -> None:
    for data in (False, True):
        slow = fed(own_s, steps=steps, gap_s=1.25, data=data).find()
        assert (slow.rank if slow is not None else None) == who
        if slow is not None:
            assert ("fetching data" if data else "outside of the step") in slow.advice.text
