"""What is said of a resumed attempt by its measured values, of made-up trainings whose every value is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.policy.same_training import Judgement, Restart, judge
from supervisor.run.records import Difference, Sameness

Rows = dict[int, dict[str, float]]
HALVED = Restart(resumes_at=100, accumulates_otherwise=True)


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


def test_the_same_training_is_the_same() -> None:
    found = said(AFTER)
    assert (found.result, found.difference) == (Sameness.SAME, None)
    assert found.text.startswith("30 steps trained twice: learning rate as before, ")


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (replace(AFTER, rate_shift=100), Difference.LEARNING_RATE),
        (replace(AFTER, rate_times=2, rate_from=100), Difference.LEARNING_RATE),
        (replace(AFTER, norm_times=2), Difference.GRAD_NORM),
        (replace(AFTER, norm_times=0.5, loss_times=0.5), Difference.GRAD_NORM),
        (replace(AFTER, age=70, own=0.02), Difference.LOSS),
        (Log(range(1, 51), own=0.02), Difference.STEP),
    ],
)
def test_each_value_that_differs_is_named(after: Log, named: Difference) -> None:
    found = said(after)
    assert (found.result, found.difference) == (Sameness.DIFFERS, named), found.text


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
    found = judge(before, after, Restart(resumes_at=at, accumulates_otherwise=otherwise))
    assert found.text
    assert (found.difference is not None) == (found.result is Sameness.DIFFERS)
