"""Where the time of a step goes, from the records of the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from supervisor.policy.health.slow_steps import LostTime, RankTimes, SpentOn, why_slow

USUAL_S = 0.1


def times(count: int = 60, *, compute_s: float = 0.08, workers: int = 0, **more: float) -> RankTimes:
    """A rank with 10 steps of 0.1 s in each record. `more`: seconds in each record, which are added to its time."""
    return of({"step_time_s": 10 * USUAL_S + sum(more.values()), **more} for _ in range(count)).timed(
        compute_s, workers
    )


class Made(RankTimes):
    def timed(self, compute_s: float, workers: int = 0) -> RankTimes:
        self.add({"kind": "loader", "id": 1, "workers": workers})
        for row in [*self.rows]:
            self.computed.append((int(row["step"]), compute_s))
        return self


def of(rows: Iterator[Mapping[str, float]]) -> Made:
    made = Made()
    for at, row in enumerate(rows, start=1):
        made.add({"kind": "step", "step": 10 * at, "steps": 10, **row})
    return made


def only(found: list[LostTime]) -> LostTime:
    (one,) = found
    return one


def test_a_run_whose_steps_compute_is_told_nothing() -> None:
    assert why_slow({0: times(), 1: times()}) == []
    assert why_slow({}) == []
    assert why_slow({0: times(count=1)}) == [], "too few steps"


def test_the_wait_for_data_of_all_ranks_names_the_number_of_workers() -> None:
    found = only(why_slow({0: times(data_wait_s=1.5), 1: times(data_wait_s=1.6)}))
    assert found.cause is SpentOn.DATA
    assert (round(found.share, 2), found.rank, found.setting) == (0.61, None, "num_workers is 0")
    assert found.text == "waiting for data on all ranks"
    named = only(why_slow({0: times(data_wait_s=1.5, workers=4)}, "--workers"))
    assert (named.text, named.setting) == (
        "waiting for data on the process",
        "--workers is 4",
    )


def test_the_wait_of_one_rank_names_it() -> None:
    found = only(why_slow({0: times(), 1: times(data_wait_s=1.5)}))
    assert (found.cause, found.rank, found.text) == (
        SpentOn.DATA,
        1,
        "waiting for data on rank 1",
    )


def test_a_rank_that_computes_longer_is_named_with_the_step_since_when() -> None:
    slow = times()
    slow.computed = [(step, 0.08 if step < 300 else 0.12) for step, _ in slow.computed]
    found = only(why_slow({0: times(), 1: slow, 2: times()}))
    assert (found.cause, found.rank) == (SpentOn.COMPUTE, 1)
    assert found.text == "rank 1 computes 1.5 × the median of the others since step 300"
    assert found.share == pytest.approx(0.4 * 31 / 60)


@pytest.mark.parametrize(
    ("name", "cause", "text"),
    [
        ("save_s", SpentOn.SAVES, "saving checkpoints takes 5 s about every 100 steps"),
        ("evaluation_s", SpentOn.EVALUATION, "evaluation takes 5 s about every 100 steps"),
    ],
)
def test_time_between_steps_is_told_with_its_length_and_frequency(
    name: str, cause: SpentOn, text: str
) -> None:
    found = only(why_slow({0: of(with_extra(name, 5.0, slowest=True))}))
    assert (found.cause, found.text, round(found.share, 2)) == (cause, text, 0.33)


def with_extra(name: str, seconds: float, *, slowest: bool, every: int = 10) -> Iterator[dict[str, float]]:
    for at in range(1, 61):
        extra = seconds if at % every == 0 else 0.0
        row = {"step_time_s": 10 * USUAL_S + extra, name: extra}
        yield row | ({"slowest_s": USUAL_S + extra, "slowest_step": 10.0 * at} if slowest else {})


def test_slow_steps_that_nothing_explains_are_told_with_their_distance() -> None:
    found = only(why_slow({0: of(with_extra("other_s", 2.0, slowest=True))}))
    assert found.cause is SpentOn.SLOW_STEPS
    assert found.text == (
        "about every 100 steps one takes 21.0 × as long, without a save, an evaluation or a wait for data"
    )


def test_first_steps_that_take_longer_are_told() -> None:
    made = RankTimes()
    for step, seconds in enumerate([12.0, 0.1, 0.1, 0.1], start=1):
        made.add({"kind": "step", "step": step, "steps": 1, "step_time_s": seconds})
    for at in range(1, 61):
        made.add({"kind": "step", "step": 4 + 10 * at, "steps": 10, "step_time_s": 1.0})
    found = only(why_slow({0: made}))
    assert (found.cause, round(found.share, 2)) == (SpentOn.FIRST_STEPS, 0.16)
    assert found.text == "the first step took 12 s, later ones 0.1 s each: they compile or warm up"


def test_steps_that_get_longer_are_told_with_the_memory_that_grows() -> None:
    rows = ({"step_time_s": 1.0 + at / 30, "memory_now_bytes": at << 20} for at in range(1, 61))
    found = only(why_slow({0: of(rows)}))
    assert found.cause is SpentOn.GROWING
    assert found.text.startswith("steps get longer: 0.14 s at step 20, 0.27 s at step 600")
    assert found.text.endswith("and the process's memory grows with them")


def test_a_cause_that_costs_less_than_a_twentieth_is_not_told_and_the_dearest_comes_first() -> None:
    assert why_slow({0: times(data_wait_s=0.04)}) == []
    found = why_slow({0: times(data_wait_s=0.3, save_s=0.5)})
    assert [one.cause for one in found] == [SpentOn.SAVES, SpentOn.DATA]
