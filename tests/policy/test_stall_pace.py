"""Pace: a high percentile in bounded memory; thresholds that follow it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.spec import HangSettings
from supervisor.policy.health.stall import Paces, Stage, StallWatch
from supervisor.run.events import Phase
from tests.conftest import not_none

durations = st.floats(min_value=0.002, max_value=1e5)


@given(st.lists(durations, min_size=6, max_size=60), st.floats(0.1, 100.0))
def test_thresholds_are_those_agreed(gaps: list[float], extra_s: float) -> None:
    settings = HangSettings()
    watch = StallWatch(Paces(), settings, started=0.0)
    now = 1.0
    watch.step(now)
    for gap in gaps:
        now += gap
        watch.step(now)
    limit = not_none(watch.threshold())
    assert limit.stage is Stage.STEP
    assert limit.flag_s == max(2.0, 3 * limit.pace_s)
    assert limit.act_s == max(300.0, 10 * limit.pace_s, 3 * max(gaps))
    assert watch.flag(now + 0.99 * limit.flag_s) is None
    flagged = watch.flag(now + limit.flag_s + extra_s)
    assert flagged == limit
    assert watch.flag(now + limit.flag_s + extra_s) is None, "a stall is flagged once"


def stepping(paces: Paces | None = None, *, steps: int = 20, gap_s: float = 0.2) -> tuple[StallWatch, float]:
    watch = StallWatch(paces or Paces(), HangSettings(), started=0.0)
    now = 5.0
    for _ in range(steps):
        watch.step(now)
        now += gap_s
    return watch, now - gap_s


def test_a_first_evaluation_is_never_a_stall_and_a_second_has_a_pace_of_its_own() -> None:
    watch, now = stepping()
    watch.enter(Phase.EVALUATING, now)
    assert watch.flag(now + 3600) is None
    watch.enter(Phase.STEPPING, now + 40)
    for step in range(6):
        watch.step(now + 40 + 0.2 * step)
    now += 50
    watch.enter(Phase.EVALUATING, now)
    limit = not_none(watch.threshold())
    assert limit.stage is Stage.EVALUATION
    assert limit.flag_s >= 3 * 40
    assert watch.flag(now + 100) is None
    assert watch.flag(now + 3 * 40 + 1) is not None


def test_the_first_step_of_a_restart_belongs_to_the_start_not_to_the_steps() -> None:
    paces = Paces()
    stepping(paces)
    second = StallWatch(paces, HangSettings(), started=100.0)
    second.enter(Phase.STEPPING, 101.0)
    limit = not_none(second.threshold())
    assert limit.stage is Stage.START
    assert second.flag(108.0) is None, "the first attempt took 5 s to its first step"


def test_a_stall_that_ends_is_told_and_only_a_longer_one_is_flagged_again() -> None:
    watch, now = stepping()
    assert watch.flag(now + 3) is not None
    assert watch.ended_s() is None
    watch.step(now + 20)
    assert watch.ended_s() == pytest.approx(20)
    assert watch.ended_s() is None
    assert watch.flagged is None
    now += 20
    for _ in range(300):
        now += 0.2
        watch.step(now)
    assert watch.flag(now + 30) is None
    assert watch.flag(now + 41) is not None


@pytest.mark.parametrize("flagged", [True, False])
def test_a_silence_that_the_run_came_back_from_makes_the_end_of_later_ones_later(flagged: bool) -> None:
    paces = Paces()
    watch, now = stepping(paces)
    if flagged:
        assert watch.flag(now + 3) is not None
    watch.step(now + 250)
    for _ in range(300):
        now += 0.2
        watch.step(now + 250)
    limit = not_none(watch.threshold())
    assert limit.act_s == pytest.approx(3 * 250), "not the 99th percentile: it was one step of 320"
    following = StallWatch(paces, HangSettings(), started=now + 300)
    following.step(now + 301)
    limit = not_none(following.threshold())
    assert limit.act_s == pytest.approx(3 * 250), "also in the next attempt"


def test_switched_off_it_sees_nothing_and_without_act_it_only_flags() -> None:
    off = StallWatch(Paces(), HangSettings(enabled=False), started=0.0)
    for step in range(20):
        off.step(float(step))
    assert off.flag(1e6) is None
    paces = Paces()
    for _ in range(20):
        paces.add(Stage.STEP, 0.2)
    flags_only = StallWatch(paces, HangSettings(act_s=0.0), started=0.0)
    flags_only.step(1.0)
    flagged = not_none(flags_only.flag(1000.0))
    assert flagged.act_s is None
