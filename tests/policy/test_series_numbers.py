"""The arithmetic on what was logged by step: exact on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from supervisor.policy.same_training import series
from supervisor.policy.same_training.case import Case, Restart
from supervisor.policy.same_training.learning_rate import Schedule, learning_rate
from supervisor.policy.same_training.series import NEAR
from supervisor.run.records import Difference

LINE = {step: 3.0 + 2.0 * step for step in range(5)}


def test_columns_leave_out_what_is_no_number() -> None:
    table = {3: {"x": 1.0}, 1: {"x": 1e101}, 2: {"x": 1e-101, "y": 2.0}, 4: {"y": 1.0}, 5: {"x": -2.0}}
    assert series.column_of(table, "x") == {2: 0.0, 3: 1.0, 5: -2.0}
    assert series.first_of({3: 1.0, 1: 2.0, 2: 3.0}, 2) == {1: 2.0, 2: 3.0}
    assert series.last_of({3: 1.0, 1: 2.0, 2: 3.0}, 2) == {2: 3.0, 3: 1.0}
    assert series.gaps_between([1, 4, 9]) == [3, 5]


def test_spread_and_deviation() -> None:
    assert series.spread_of([]) == series.spread_of([7.0]) == 0.0
    assert series.spread_of([1.0, 3.0]) == pytest.approx(1.4826)
    assert series.spread_of([0.0, 1.0, 2.0, 3.0, 1000.0]) == pytest.approx(1.4826)
    assert series.deviation_of([5.0]) == 0.0
    assert series.deviation_of([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert series.error_of_median([4.0]) == math.inf
    assert series.error_of_median([1.0, 3.0]) == pytest.approx(1.2533 * 1.4826 / math.sqrt(2))
    assert series.error_of_median([1.0, 1.0, 1.0, 9.0]) == pytest.approx(1.2533 * 0.5 * 4 / 2)


def test_noise_is_known_from_half_a_dozen_gaps_on() -> None:
    few = {step: float(step % 2) for step in range(NEAR // 2)}
    assert series.noise_of(few) is None
    enough = {step: float(step % 2) for step in range(NEAR // 2 + 1)}
    assert series.noise_of(enough) == pytest.approx(1.4826 / math.sqrt(2))
    assert series.noise_of(dict.fromkeys(range(20), 5.0)) == 0.0


def test_the_line_through_points() -> None:
    assert series.slope_of({1: 1.0, 2: 2.0}) is None
    assert series.slope_of(LINE) == pytest.approx(2.0)
    slope, value, error = series.line_through(LINE, at=10)
    assert [slope, value] == pytest.approx([2.0, 23.0])
    assert error == pytest.approx(0.0, abs=1e-9)
    assert series.line_through({4: 2.0}, at=9) == (0.0, 2.0, 0.0)
    bent = {0: 0.0, 1: 1.0, 2: 0.0}
    slope, value, error = series.line_through(bent, at=1)
    assert [slope, value] == pytest.approx([0.0, 1 / 3])
    assert error == pytest.approx(math.sqrt(2 / 3) * math.sqrt(1 / 3))
    assert series.line_through(bent, at=2)[2] == pytest.approx(math.sqrt(2 / 3) * math.sqrt(1 / 3 + 1 / 2))


def test_what_is_left_without_a_trend() -> None:
    steps = [float(step) for step in range(8)]
    parabola = [2 + 3 * s - 0.5 * s * s for s in steps]
    assert series.without_trend(steps, parabola) == pytest.approx([0.0] * 8, abs=1e-9)
    assert series.without_trend([4.0, 4.0], [1.0, 3.0]) == pytest.approx([-1.0, 1.0])
    zigzag = series.without_trend(steps, [(-1.0) ** int(s) for s in steps])
    assert max(abs(a - b) for a, b in zip(zigzag, [(-1.0) ** int(s) for s in steps], strict=True)) < 0.6


def test_correlation() -> None:
    assert series.correlation([1.0, -1.0], [2.0, -2.0]) == pytest.approx(1.0)
    assert series.correlation([1.0, -1.0], [-2.0, 2.0]) == pytest.approx(-1.0)
    assert series.correlation([1.0, -1.0], [1.0, 1.0]) == pytest.approx(0.0)
    assert series.correlation([0.0, 0.0], [1.0, 1.0]) is None


@pytest.mark.parametrize(
    ("values", "quantum"),
    [
        ([], 0.0),
        ([0.0], 0.0),
        ([1.5], 0.1),
        ([1.5, 0.25], 0.01),
        ([3e-4], 1e-4),
        ([-2.345], 0.001),
        ([120.0], 10.0),
    ],
)
def test_what_printing_rounds_away(values: list[float], quantum: float) -> None:
    assert series.quantum_of(values) == pytest.approx(quantum)


# -- the schedule of the learning rate ---------------------------------------------------------------


def test_a_schedule_between_and_beyond_its_points() -> None:
    known = Schedule({0: 1.0, 10: 2.0, 40: 5.0}, 10, 0.0)
    assert [known.has(step) for step in (-1, 0, 5, 10, 25, 40, 41)] == [
        False,
        True,
        True,
        True,
        False,
        True,
        False,
    ]
    assert [known.at(step) for step in (-5, 0, 5, 10, 40, 99)] == [1.0, 1.0, 1.5, 2.0, 5.0, 5.0]
    assert known.at(25) == 5.0, "too far from both: the end's"
    two_apart = Schedule({0: 1.0, 20: 2.0}, 10, 0.0)
    assert two_apart.has(10), "one that was not logged may lie between"
    assert not Schedule({0: 1.0, 21: 2.0}, 10, 0.0).has(10)


def test_a_value_may_be_that_of_the_step_beside() -> None:
    known = Schedule({step: 0.1 * step for step in range(20)}, 1, 0.001)
    assert known.matches(10, 1.0)
    assert known.matches(10, 1.1)
    assert known.matches(10, 0.9)
    assert not known.matches(10, 1.15)
    assert not known.matches(10, 0.85)


def test_a_schedule_goes_on_as_a_parabola_or_where_it_bends_as_a_line() -> None:
    assert Schedule({0: 1.0, 1: 2.0}, 1, 0.0).continued() is None
    curved = Schedule({step: 1 + 0.5 * step + 0.25 * step**2 for step in range(20)}, 1, 0.0).continued()
    assert curved is not None
    assert curved.at(25) == pytest.approx(1 + 12.5 + 0.25 * 625)
    kink = {step: float(step) if step < 10 else 10.0 + 5 * (step - 10) for step in range(16)}
    straight = Schedule(kink, 1, 0.0).continued()
    assert straight is not None
    assert straight.last == 15
    assert straight.at(17) == pytest.approx(45.0)


def rates(steps: range, rate: object) -> dict[int, dict[str, float]]:
    return {step: {"lr": rate(step)} for step in steps}  # type: ignore[operator]


def cosine(step: float) -> float:
    return float(f"{1e-3 * (0.5 + 0.5 * math.cos(math.pi * step / 400)):.4e}")


HALVED = Restart(resumes_at=100, accumulation=(1, 2), micro=(8, 4), world=(2, 2))


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (rates(range(101, 130), cosine), None),
        (rates(range(101, 130), lambda s: cosine(s - 100)), Difference.LR_RESTARTED),
        (rates(range(101, 130), lambda s: cosine(100 + 2 * (s - 100))), Difference.LR_COUNTED_TWICE),
        (rates(range(101, 130), lambda s: 3 * cosine(s)), Difference.LEARNING_RATE),
        (rates(range(101, 103), lambda s: 3 * cosine(s)), None),
    ],
)
def test_steps_trained_twice_show_a_wrong_schedule(
    after: dict[int, dict[str, float]], named: Difference | None
) -> None:
    found = learning_rate(Case(rates(range(1, 140), cosine), after, HALVED))
    assert (found.difference if found is not None else None) is named
    if found is not None:
        numbers = dict(found.numbers)
        assert numbers["step"] == 129
        assert numbers["lr_before"] == pytest.approx(cosine(129))
        assert numbers["lr_after"] == pytest.approx(after[129]["lr"])


@pytest.mark.parametrize(
    ("rate", "named"),
    [
        (cosine, None),
        (lambda s: cosine(s - 100), Difference.LR_RESTARTED),
        (lambda s: cosine(100 + 2 * (s - 100)), Difference.LR_COUNTED_TWICE),
        (lambda s: cosine(s + 100), Difference.LR_COUNTED_TWICE),
        (lambda s: cosine(s) * 1.03, None),
    ],
)
def test_beyond_what_is_known_only_what_can_be_named_is(rate: object, named: Difference | None) -> None:
    found = learning_rate(Case(rates(range(1, 101), cosine), rates(range(101, 130), rate), HALVED))
    assert (found.difference if found is not None else None) is named
    if found is not None:
        assert dict(found.numbers)["lr_expected"] == pytest.approx(cosine(108), rel=0.05)


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (lambda s: cosine(s - 100), "the schedule of the first steps again"),
        (lambda s: cosine(100 + 2 * (s - 100)), "the schedule moves on too fast"),
        (lambda s: 3 * cosine(s), ""),
    ],
)
def test_what_is_said_of_a_wrong_rate_names_step_and_both_values(rate: object, said: str) -> None:
    after = rates(range(101, 130), rate)
    found = learning_rate(Case(rates(range(1, 140), cosine), after, HALVED))
    assert found is not None
    assert found.certain
    values = f"at step 129 it is {after[129]['lr']:.4g} and was {cosine(129):.4g}"
    assert found.text == (f"{values}: {said}" if said else values)


@pytest.mark.parametrize("times", [2, 3, 4, 8])
def test_a_schedule_that_moves_too_fast_says_how_many_times(times: int) -> None:
    def faster(step: float) -> float:
        return cosine(100 + times * (step - 100))

    plain = Restart(resumes_at=100)
    found = learning_rate(Case(rates(range(1, 400), cosine), rates(range(101, 130), faster), plain))
    assert found is not None
    assert (found.difference, found.certain) == (Difference.LR_COUNTED_TWICE, True)
    assert f"it moves {times} times as fast" in found.text


def test_a_rate_that_is_held_and_then_is_another_is_only_another() -> None:
    before = rates(range(1, 140), lambda _: 1e-3)
    found = learning_rate(Case(before, rates(range(101, 130), lambda _: 3e-3), HALVED))
    assert found is not None
    assert found.difference is Difference.LEARNING_RATE


def test_losses_that_have_no_logarithm_are_left_out() -> None:
    before = {1: {"loss": 1.0}, 2: {"loss": -1.0}, 3: {"loss": 2.0}, 4: {"loss": 1.0}}
    after = {1: {"loss": 2.0}, 2: {"loss": 1.0}, 3: {"loss": 0.0}, 4: {"loss": 1.0}}
    case = Case(before, after, Restart())
    assert [round(gap, 3) for gap in case.log_gaps("loss")] == [0.693, 0.0]


def test_where_no_accumulation_was_changed_none_is_blamed() -> None:
    after = rates(range(101, 130), lambda s: cosine(100 + 2 * (s - 100)))
    found = learning_rate(Case(rates(range(1, 101), cosine), after, Restart(resumes_at=100)))
    assert found is None


def test_by_what_a_wrong_weight_would_be_off() -> None:
    def factors(accumulation: tuple[int, int] | None, world: tuple[int, int] | None) -> dict[str, float]:
        table = {1: {"loss": 1.0}}
        return Case(table, {2: {"loss": 1.0}}, Restart(accumulation=accumulation, world=world)).factors()

    assert factors(None, (2, 4)) == {}
    assert factors((1, 1), None) == {}
    found = factors((2, 8), (2, 3))
    assert found["accumulation 2 → 8"] == 4.0
    assert found["accumulation 8"] == 8.0
    assert found["ranks 2 → 3"] == 1.5
    assert found["accumulation × ranks"] == 6.0
    assert found["1 / (accumulation 8)"] == 0.125
