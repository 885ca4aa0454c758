"""What is said of a resumed attempt by its measured values, of made-up trainings whose every value is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.policy.same_training import Judgement, Restart, judge
from supervisor.run.records import Difference, Sameness

Rows = dict[int, dict[str, float]]
HALVED = Restart(resumes_at=100, expected=True, accumulates_otherwise=True, total_steps=None)


@dataclass(frozen=True)
class Log:
    """A training's log as a formula: a falling loss, noise that belongs to each step's samples, a cosine schedule.

    `own`: noise of this attempt alone, as dropout's. `order`: whose samples. `rate_at`: the schedule's step.
    """

    steps: range
    own: float = 0.0
    order: int = 0
    loss_times: float = 1.0
    norm_times: float = 1.0
    rate_times: float = 1.0
    rate_shift: int = 0
    rate_from: int = 0
    age: int = 0  # steps that the weights are behind
    fields: tuple[str, ...] = ("loss", "lr", "grad_norm")

    def rows(self) -> Rows:
        return {step: {n: v for n, v in self._row(step).items() if n in self.fields} for step in self.steps}

    def _row(self, step: int) -> dict[str, float]:
        noise = random.Random(f"{self.order}/{step}").gauss(0, 0.15)
        own = random.Random(f"own/{self.steps}/{step}").gauss(0, 1) * self.own
        loss = (1 + 3 * math.exp(-(step - self.age) / 60)) * math.exp(noise + own)
        at = self.rate_from + (step - self.rate_from) * self.rate_times - self.rate_shift
        rate = 1e-3 * (min(at / 20, 1) if at < 20 else 0.5 + 0.5 * math.cos(math.pi * (at - 20) / 400))
        return {
            "loss": round(loss * self.loss_times, 5),
            "lr": float(f"{rate:.3e}"),
            "grad_norm": round(2 * math.exp(0.8 * noise + own) * self.norm_times, 4),
        }


BEFORE = Log(range(1, 131))
AFTER = Log(range(101, 151))


def said(after: Log, restart: Restart = HALVED, before: Log = BEFORE) -> Judgement:
    return judge(before.rows(), after.rows(), restart)


@pytest.mark.parametrize(
    ("after", "result", "text"),
    [
        (AFTER, Sameness.SAME, "30 steps trained twice: learning rate as before, losses differ by 0 %"),
        (replace(AFTER, loss_times=0.6), Sameness.SAME, "30 steps trained twice: learning rate as before, losses differ by 40 %"),
        (replace(AFTER, fields=("loss", "grad_norm")), Sameness.SAME_WITHIN_NOISE, "30 steps trained twice: losses differ by 0 %"),
        (replace(AFTER, steps=range(122, 126)), Sameness.SAME, "4 steps trained twice: learning rate as before, losses differ by 0 %"),
    ],
)  # fmt: skip
def test_the_same_training_is_the_same(after: Log, result: Sameness, text: str) -> None:
    """The gradient norm that is exactly as before proves the weights and the samples, whatever the loss averages."""
    assert said(after) == Judgement(result, f"{text} (median relative difference)")


@pytest.mark.parametrize(
    ("after", "named", "text"),
    [
        (replace(AFTER, rate_shift=100), Difference.LEARNING_RATE, "at step 130 it is 0.0009985 and was 0.0008247"),
        (replace(AFTER, rate_times=2, rate_from=100), Difference.LEARNING_RATE, "at step 130 it is 0.000727 and was 0.0008247"),
        (replace(AFTER, norm_times=2), Difference.GRAD_NORM, "the gradient norm of the first steps is 2 times that of before"),
        (replace(AFTER, norm_times=0.5, loss_times=0.5), Difference.GRAD_NORM, "the gradient norm of the first steps is 0.5 times that of before"),
        (replace(AFTER, age=70, own=0.02), Difference.LOSS, "the loss of the first steps is 1.74 times that of before: 2.626 for 1.494 at step 101"),
        (Log(range(1, 51), own=0.02), Difference.STEP, "it began at step 1, not after step 100"),
    ],
)  # fmt: skip
def test_each_value_that_differs_is_named(after: Log, named: Difference, text: str) -> None:
    assert said(after) == Judgement(Sameness.DIFFERS, text, named)


@pytest.mark.parametrize(
    ("before", "after", "restart", "text"),
    [
        (range(1, 11), range(1, 6), {"resumes_at": 4}, "it began at step 1, not after step 4"),
        (range(1, 11), range(1, 6), {"resumes_at": 3}, ""),
        (range(1, 11), range(1, 6), {"resumes_at": None}, "it began at step 1, not after step 10"),
        (range(1, 11), range(1, 6), {"resumes_at": 4, "expected": False}, ""),
        (range(0, 110, 10), range(10, 60, 10), {"resumes_at": 20}, "it began at step 10, not after step 20"),
        (range(0, 110, 10), range(10, 60, 10), {"resumes_at": 19}, ""),
        (range(0, 110, 10), range(11, 61, 10), {"resumes_at": 100}, ""),
        # A step may have become a micro-batch: the numbers run away, or the script reports another last step.
        (range(1, 131), range(125, 135), {}, ""),
        (range(1, 131), range(126, 136), {}, "the log's steps may count micro-batches"),
        (range(1, 131), range(126, 136), {"accumulates_otherwise": False}, ""),
        (range(0, 310, 10), range(140, 190, 10), {}, ""),
        (range(0, 310, 10), range(141, 191, 10), {}, "the log's steps may count micro-batches"),
        (range(1, 131), range(101, 111), {"total_steps": (400, 800)}, "the log's steps may count micro-batches"),
        (range(1, 131), range(101, 111), {"total_steps": (400, 400)}, ""),
    ],
)  # fmt: skip
def test_where_a_restart_may_begin(before: range, after: range, restart: dict[str, Any], text: str) -> None:
    was, now = ({step: {"norm": 1.0} for step in steps} for steps in (before, after))
    found = judge(was, now, replace(HALVED, **restart))
    too_little = "the log tells too little: losses of steps that were trained twice: 0, needed 3"
    assert found.text == (text or too_little)


@pytest.mark.parametrize(
    ("rates", "after", "text"),
    [
        ([0.0] * 5, [0.0] * 5, ""),  # zero at the end of its schedule
        ([1e-3] * 3, [1e-3, 2e-3, 3e-3], "at step 3 it is 0.003 and was 0.001"),
        ([1e-3] * 3, [2e-3, 2e-3, 1e-3], ""),
        ([1e-3] * 3, [1e-3, 1e-3, 2e-3], ""),
        ([1e-3] * 10, [1e-3] * 7 + [2e-3] * 3, "at step 10 it is 0.002 and was 0.001"),
        ([1e-3] * 10, [1e-3] * 8 + [2e-3] * 2, ""),
        # Printed before or after the scheduler's step, and one step further off.
        ([1e-4 * step for step in range(1, 8)], [1e-4 * step for step in range(2, 9)], ""),
        ([1e-4 * step for step in range(1, 8)], [1e-4 * step for step in range(8)][:-1], ""),
        ([1e-4 * step for step in range(1, 8)], [1e-4 * step for step in range(3, 10)], "at step 7 it is 0.0009 and was 0.0007"),
    ],
)  # fmt: skip
def test_a_learning_rate_of_another_step_is_named(rates: list[float], after: list[float], text: str) -> None:
    was, now = ({n: {"lr": rate} for n, rate in enumerate(each, start=1)} for each in (rates, after))
    found = judge(was, {**now, 99: {}}, replace(HALVED, expected=False))
    assert (found.text if found.difference is Difference.LEARNING_RATE else "") == text


@pytest.mark.parametrize(
    ("count", "gap", "spread", "result"),
    [
        # How far the mean is from zero, in standard errors, and above a tenth.
        (8, 4.6 * 0.2 / math.sqrt(8), 0.2, Sameness.DIFFERS),
        (8, 4.4 * 0.2 / math.sqrt(8), 0.2, Sameness.UNKNOWN),
        (7, 4.6 * 0.2 / math.sqrt(8), 0.2, Sameness.UNKNOWN),
        (16, math.log(1.11), 0.02, Sameness.DIFFERS),
        (16, math.log(1.09), 0.02, Sameness.UNKNOWN),
        (16, 1.9 * 0.1 / math.sqrt(16), 0.1, Sameness.SAME_WITHIN_NOISE),
        (16, 2.1 * 0.1 / math.sqrt(16), 0.1, Sameness.UNKNOWN),
        # Noise that hides a loss a quarter higher.
        (16, 0.0, 0.99 * math.log(1.25) * math.sqrt(16) / 4.5, Sameness.SAME_WITHIN_NOISE),
        (16, 0.0, 1.01 * math.log(1.25) * math.sqrt(16) / 4.5, Sameness.UNKNOWN),
        (14, 0.0, 0.05, Sameness.SAME_WITHIN_NOISE),
        (13, 0.0, 0.05, Sameness.UNKNOWN),
        (3, 0.0, 0.0, Sameness.SAME_WITHIN_NOISE),
        (2, 0.0, 0.0, Sameness.UNKNOWN),
    ],
)  # fmt: skip
def test_losses_differ_if_the_noise_does_not_explain_it(
    count: int, gap: float, spread: float, result: Sameness
) -> None:
    """Gaps alternate around their mean with a standard deviation of `spread`."""
    side = spread * math.sqrt((count - 1) / count) if count % 2 == 0 else spread
    before = {n: {"loss": math.exp((-1) ** (n // 2))} for n in range(count)}
    after = {n: {"loss": row["loss"] * math.exp(gap + (-1) ** n * side)} for n, row in before.items()}
    assert judge(before, {**after, 99: {}}, replace(HALVED, expected=False)).result is result


@pytest.mark.parametrize(
    ("after", "result", "reason"),
    [
        (replace(AFTER, own=0.05), Sameness.SAME_WITHIN_NOISE, "30 steps trained twice"),
        (replace(AFTER, own=0.5), Sameness.UNKNOWN, "too noisy to show other weights or another order of the data"),
        (replace(AFTER, order=7), Sameness.UNKNOWN, "another order of the data; 30"),
        (replace(AFTER, loss_times=0.6), Sameness.UNKNOWN, "the loss of the first steps is 0.6 times"),
        (replace(AFTER, steps=range(122, 136), own=0.05), Sameness.UNKNOWN, "too noisy to show"),
        (replace(AFTER, steps=range(101, 104)), Sameness.UNKNOWN, "too few steps are logged after it: 3"),
        (replace(AFTER, fields=("lr",)), Sameness.UNKNOWN, "the log tells too little"),
        # Lightning's bar counts batches: twice as many once they are half as large.
        (replace(AFTER, rate_times=0.5, steps=range(201, 261)), Sameness.UNKNOWN, "may count micro-batches"),
    ],
)  # fmt: skip
def test_what_noise_hides_is_not_decided(after: Log, result: Sameness, reason: str) -> None:
    """The gradient norm that is exactly as before would prove the weights and the samples: here it is not logged."""
    alone = tuple(name for name in after.fields if name != "grad_norm")
    found = said(replace(after, fields=alone), before=replace(BEFORE, fields=("loss", "lr")))
    assert found.result is result, found.text
    assert reason in found.text


def test_another_order_of_the_data_is_never_called_the_same() -> None:
    found = [said(replace(AFTER, order=order)).result for order in range(1, 31)]
    assert not {Sameness.SAME, Sameness.SAME_WITHIN_NOISE} & set(found)


def test_a_start_from_scratch_that_was_meant_is_the_same_training() -> None:
    found = said(Log(range(1, 51)), replace(HALVED, expected=False, resumes_at=None))
    assert found.result is Sameness.SAME
    assert "begun again at the first step" in found.text


VALUES = some.floats(allow_nan=True, allow_infinity=True) | some.sampled_from([0.0, -1.0, 1.0, 1e-300, 1e300])
TABLES = some.dictionaries(
    some.integers(0, 40),
    some.dictionaries(some.sampled_from(["loss", "lr", "grad_norm", "x"]), VALUES),
    max_size=40,
)


@settings(deadline=None, max_examples=25)
@given(
    before=TABLES,
    after=TABLES,
    at=some.none() | some.integers(0, 400),
    otherwise=some.booleans(),
)
def test_whatever_was_logged_something_is_said(
    before: Rows, after: Rows, at: int | None, otherwise: bool
) -> None:
    found = judge(before, after, replace(HALVED, resumes_at=at, accumulates_otherwise=otherwise))
    assert found.text
    assert (found.difference is not None) == (found.result is Sameness.DIFFERS)
