"""What is said of a resumed attempt by its log, of made-up trainings whose every value is known."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.policy.same_training.case import Restart
from supervisor.policy.same_training.judge import Judgement, judge
from supervisor.run.records import Difference, Sameness

Rows = dict[int, dict[str, float]]
HALVED = Restart(resumes_at=100, accumulation=(1, 2), micro=(8, 4), world=(2, 2))


@dataclass(frozen=True)
class Log:
    """A training's log as a formula: a falling loss, noise that belongs to each step's samples, a cosine schedule.

    `samples`: counts of a step. `own`: noise of this attempt alone, as dropout's. `order`: whose samples. `rate_at`: the schedule's step.
    """

    steps: range
    samples: int = 16
    own: float = 0.0
    order: int = 0
    order_from: int = 0
    loss_times: float = 1.0
    norm_times: float = 1.0
    rate_times: float = 1.0
    rate_shift: int = 0
    rate_from: int = 0
    bump: float = 0.0
    norm_bump: float = 0.0
    age: int = 0  # steps that the weights are behind
    fields: tuple[str, ...] = ("loss", "lr", "grad_norm", "samples")

    def rows(self) -> Rows:
        return {step: {n: v for n, v in self._row(step).items() if n in self.fields} for step in self.steps}

    def _row(self, step: int) -> dict[str, float]:
        noise = random.Random(f"{self.order}/{step - self.order_from}").gauss(0, 0.15)
        own = random.Random(f"own/{self.steps}/{step}").gauss(0, 1) * self.own
        later, norm_later = (self.bump, self.norm_bump) if step > self.steps[0] else (0.0, 0.0)
        loss = (1 + 3 * math.exp(-(step - self.age) / 60)) * math.exp(noise + own + later)
        at = self.rate_from + (step - self.rate_from) * self.rate_times - self.rate_shift
        rate = 1e-3 * (min(at / 20, 1) if at < 20 else 0.5 + 0.5 * math.cos(math.pi * (at - 20) / 400))
        return {
            "loss": round(loss * self.loss_times, 5),
            "lr": float(f"{rate:.3e}"),
            "grad_norm": round(2 * math.exp(0.8 * noise + own + norm_later) * self.norm_times, 4),
            "samples": float(self.samples * step),
        }


LIKE_BY_CHANCE = 391
BEFORE = Log(range(1, 131))
AFTER = Log(range(101, 151))


def said(after: Log, restart: Restart = HALVED, before: Log = BEFORE) -> Judgement:
    return judge(before.rows(), after.rows(), restart)


def test_the_same_training_is_the_same() -> None:
    found = said(AFTER)
    assert (found.result, found.difference) == (Sameness.SAME, None)
    assert (found.twice, found.new) == (30, 20)
    assert "30 steps trained twice" in found.text
    assert "samples of a step 16" in found.text


def test_with_noise_of_its_own_it_is_the_same_within_noise() -> None:
    assert said(replace(AFTER, own=0.05)).result is Sameness.SAME_WITHIN_NOISE


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (replace(AFTER, rate_shift=100), Difference.LR_RESTARTED),
        (replace(AFTER, rate_times=2, rate_from=100), Difference.LR_COUNTED_TWICE),
        (replace(AFTER, samples=8), Difference.GLOBAL_BATCH),
        (replace(AFTER, samples=32), Difference.GLOBAL_BATCH),
        (replace(AFTER, norm_times=2), Difference.ACCUMULATION_WEIGHTING),
        (replace(AFTER, norm_times=0.5, loss_times=0.5), Difference.ACCUMULATION_WEIGHTING),
        (replace(AFTER, order=7), Difference.DATA_ORDER),
        (replace(AFTER, order_from=100), Difference.DATA_ORDER),
        (replace(AFTER, age=70, own=0.02), Difference.WEIGHTS),
        (replace(AFTER, bump=0.02), Difference.OPTIMIZER_STATE),
        (Log(range(1, 51), own=0.02), Difference.FROM_STEP_0),
        (Log(range(1, 51), age=-100, own=0.02), Difference.STEP_COUNTER),
    ],
)
def test_each_difference_is_named(after: Log, named: Difference) -> None:
    found = said(after)
    assert (found.result, found.difference) == (Sameness.DIFFERS, named), found.text
    assert found.numbers


def test_a_shift_of_three_percent_is_other_weights_where_the_pairs_hardly_vary() -> None:
    assert said(replace(AFTER, loss_times=1.03, own=0.003)).difference is Difference.WEIGHTS
    alone = replace(BEFORE, fields=("loss", "lr", "samples"))
    assert (
        said(replace(AFTER, loss_times=1.03, own=0.05, fields=alone.fields), before=alone).result
        is Sameness.SAME_WITHIN_NOISE
    )
    assert said(replace(AFTER, loss_times=1.01, own=0.001)).difference is None


def test_noise_that_moves_loss_and_gradient_norm_together_hides_no_other_weights() -> None:
    found = said(replace(AFTER, loss_times=1.06, own=0.3))
    assert found.difference is Difference.WEIGHTS
    assert "gradient norms of the same steps" in found.text
    assert said(replace(AFTER, loss_times=0.94, own=0.3)).result is Sameness.SAME_WITHIN_NOISE
    assert said(replace(AFTER, own=0.3)).result is Sameness.SAME_WITHIN_NOISE


def test_noise_that_would_hide_a_wrong_resume_certifies_nothing() -> None:
    """The loss alone, of steps that vary by a third under dropout: neither other weights nor, with another micro-batch, other samples would show."""
    alone = replace(BEFORE, fields=("loss", "lr"))
    found = said(replace(AFTER, own=0.5, fields=alone.fields), before=alone)
    assert found.result is Sameness.UNKNOWN, found.text
    assert re.match(
        r"too noisy to show weights that raise the loss by less than \d+% or another order of the data; 30 ",
        found.text,
    )
    gap = dict(found.numbers)["loss_gap"]
    assert 0.2 < gap < 0.5
    assert (
        f"losses differ by {100 * gap:.2g} % (median relative difference), not logged: gradient norm"
        in found.text
    )
    other = said(replace(AFTER, order=7, fields=alone.fields), before=alone)
    assert other.result is Sameness.UNKNOWN, (
        "another order of the data, which the loss of another micro-batch cannot show"
    )
    assert "another order of the data" in other.text
    short = replace(alone, steps=range(1, 115))
    chance = [said(replace(AFTER, order=order, fields=short.fields), before=short) for order in range(1, 101)]
    assert sum(one.result is Sameness.SAME_WITHIN_NOISE for one in chance) <= 1, (
        "over 14 steps 1 of 5 other orders correlates by more than 0.23, the bound for blaming one"
    )
    quiet = said(replace(AFTER, own=0.05, fields=alone.fields), before=alone)
    assert quiet.result is Sameness.SAME_WITHIN_NOISE
    few = said(replace(AFTER, steps=range(126, 136), own=0.05))
    assert few.result is Sameness.UNKNOWN
    assert few.text.startswith("too few steps to show")


def test_an_exact_first_step_rules_out_other_samples() -> None:
    chaotic = Log(range(101, 151), order=3)
    rows = chaotic.rows()
    first = BEFORE.rows()[101]
    assert judge(BEFORE.rows(), rows, HALVED).difference is Difference.DATA_ORDER
    assert judge(BEFORE.rows(), rows | {101: first}, HALVED).difference is not Difference.DATA_ORDER


def test_gradients_alone_tell_of_an_optimizer_where_the_losses_hardly_move() -> None:
    found = said(replace(AFTER, norm_bump=0.02))
    assert found.difference is Difference.OPTIMIZER_STATE
    assert "the grad norm of the first step" in found.text
    assert said(replace(AFTER, norm_bump=0.001)).difference is None


def test_a_loss_off_by_a_factor_whose_gradient_is_not_is_no_weighting() -> None:
    assert said(replace(AFTER, loss_times=1.95, own=0.02)).difference is Difference.WEIGHTS
    assert (
        said(replace(AFTER, loss_times=1.95, norm_times=2, own=0.02)).difference
        is Difference.ACCUMULATION_WEIGHTING
    )


def test_other_samples_are_seen_also_where_they_go_together_by_chance() -> None:
    """Another order of the data whose losses go together by 0.41; the same one under a noise that leaves them 0.75 is not accused."""
    assert said(replace(AFTER, order=LIKE_BY_CHANCE)).difference is Difference.DATA_ORDER
    assert said(replace(AFTER, own=0.15)).result is Sameness.SAME_WITHIN_NOISE


def test_other_new_weights_may_begin_a_little_lower() -> None:
    assert said(Log(range(1, 51), own=0.02, loss_times=0.94)).difference is Difference.FROM_STEP_0


def test_where_no_step_was_trained_twice_the_trend_must_go_on() -> None:
    before = Log(range(1, 101))
    found = said(AFTER, before=before)
    assert found.result is Sameness.UNKNOWN, "other samples would not show"
    assert "no step was trained twice, so another order of the data" in found.text
    assert "loss continues where it was" in found.text
    assert said(replace(AFTER, rate_shift=100), before=before).difference is Difference.LR_RESTARTED
    assert said(replace(AFTER, samples=8), before=before).difference is Difference.GLOBAL_BATCH
    assert said(replace(AFTER, age=100, own=0.02), before=before).difference is Difference.WEIGHTS


def test_of_a_log_that_says_too_little_nothing_is_known() -> None:
    assert judge({}, {}, HALVED).result is Sameness.UNKNOWN
    assert said(replace(AFTER, steps=range(101, 104))).result is Sameness.UNKNOWN
    only = replace(AFTER, steps=range(131, 151), fields=("loss",))
    assert said(only, before=replace(BEFORE, fields=("loss",))).result is Sameness.UNKNOWN


def test_steps_that_count_micro_batches_are_not_compared() -> None:
    """Lightning's bar counts batches: twice as many once they are half as large."""
    after = replace(AFTER, samples=8, rate_times=0.5, steps=range(201, 261))
    assert said(after).result is Sameness.UNKNOWN
    assert said(replace(AFTER, samples=8), replace(HALVED, total_steps=(400, 800))).result is Sameness.UNKNOWN
    # Where the bar names no number of epochs, the totals are the ends of those that it stood in.
    ends = replace(HALVED, total_steps=(150, 900))
    assert said(replace(after, samples=16, rate_times=1), ends).result is Sameness.UNKNOWN
    assert said(replace(AFTER, samples=8), ends).difference is Difference.GLOBAL_BATCH


def test_a_start_from_scratch_that_was_meant_is_the_same_training() -> None:
    found = said(Log(range(1, 51)), replace(HALVED, expected=False, resumes_at=None))
    assert found.result is Sameness.SAME
    assert "begun again at the first step" in found.text


def test_one_ranks_samples_are_no_other_global_batch_where_ranks_are_fewer() -> None:
    fewer = Restart(resumes_at=100, accumulation=(1, 2), micro=(8, 8), world=(4, 2))
    assert said(replace(AFTER, samples=32), fewer).result is Sameness.SAME
    assert said(replace(AFTER, samples=8), fewer).difference is Difference.GLOBAL_BATCH


VALUES = some.floats(allow_nan=True, allow_infinity=True) | some.sampled_from([0.0, -1.0, 1.0, 1e-300, 1e300])
TABLES = some.dictionaries(
    some.integers(0, 40),
    some.dictionaries(some.sampled_from(["loss", "lr", "grad_norm", "samples", "x"]), VALUES),
    max_size=40,
)


@settings(deadline=None, max_examples=200)
@given(
    before=TABLES,
    after=TABLES,
    at=some.none() | some.integers(0, 400),
    steps=some.tuples(some.integers(1, 9), some.integers(1, 9)),
)
def test_whatever_was_logged_something_is_said(
    before: Rows, after: Rows, at: int | None, steps: tuple[int, int]
) -> None:
    found = judge(before, after, Restart(resumes_at=at, accumulation=steps, micro=steps, world=(1, 1)))
    assert found.text
    assert (found.difference is not None) == (found.result is Sameness.DIFFERS)


def grows_at(step_of_growth: int) -> Callable[[Rows], Rows]:
    """Sequences that get four times as long from a step on, by a schedule."""

    def put(rows: Rows) -> Rows:
        tokens = 0
        for step, row in rows.items():
            tokens = tokens + (256 if step >= step_of_growth else 64) * 16
            row |= {"tokens_seen": float(tokens), "seq_len": 256.0 if step >= step_of_growth else 64.0}
        return rows

    return put


@pytest.mark.parametrize("step_of_growth", [95, 101, 131])
def test_a_length_that_grows_by_a_schedule_is_no_other_global_batch(step_of_growth: int) -> None:
    grown = grows_at(step_of_growth)
    fields = ("loss", "lr", "grad_norm")
    before, after = replace(BEFORE, fields=fields).rows(), replace(AFTER, fields=fields).rows()
    all_steps = grown({**before, **after})
    judged = judge(
        {step: {**row, **pick(all_steps[step])} for step, row in before.items()},
        {step: {**row, **pick(all_steps[step])} for step, row in after.items()},
        HALVED,
    )
    assert judged.result is Sameness.SAME


def test_without_a_step_trained_twice_only_half_a_change_is_named() -> None:
    restart = replace(HALVED, resumes_at=130)
    after = replace(AFTER, steps=range(131, 181))
    assert said(replace(after, samples=8), restart).difference is Difference.GLOBAL_BATCH
    assert said(replace(after, samples=32), restart).difference is Difference.GLOBAL_BATCH
    assert said(replace(after, samples=64), restart).difference is None


def pick(row: dict[str, float]) -> dict[str, float]:
    return {name: row[name] for name in ("tokens_seen", "seq_len")}
