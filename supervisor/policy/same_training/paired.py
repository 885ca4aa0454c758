"""What the losses and gradient norms of steps that were trained twice tell: other weights, other samples, an optimizer that has forgotten (pure).

Each rule is one sentence with what it takes for granted:
- *Weights*: the losses are higher from the first step on, by more than the pairs vary by. Taken for granted: in a right restart the first pairs are
  the nearest, because its weights have had no time to part.
- *Weights under noise*: the losses are higher than their gradient norms account for. Taken for granted: which samples and which dropout masks a
  step saw moves both together.
- *Optimizer*: the first step is the same as far as it is printed, and the next ones are not. Taken for granted: nothing is drawn at random (no dropout).
- *Order of the data*: losses and gradient norms do not rise and fall with those of the same steps. Taken for granted: most of what moves a loss
  from step to step is which samples it saw, which is not so once nearly all is learnt and dropout is most of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from supervisor.policy.same_training.case import EXACT, Case, Found
from supervisor.policy.same_training.series import (
    LEAST_PAIRS,
    LR_SHARE,
    NEAR,
    SURE,
    Series,
    correlation,
    deviation_of,
    first_of,
    last_of,
    line_through,
    noise_of,
    quantum_of,
    slope_between,
    spread_of,
    without_trend,
)
from supervisor.run.records import Difference

ORDER_PAIRS: Final = 14
"""Below this the correlation of two orders of data (0 ± 0.3) and that of one (0.5 to 1) cannot be told apart."""
ORDER_SHOWN: Final = 3.0
"""Standard errors above 0 of a correlation that shows the same samples: 0.72 over 14 steps, 0.46 over 40."""
ORDER_BOUND: Final = 0.38
ORDER_BOUND_QUIET: Final = 0.55
ORDER_QUIET: Final = 0.6
ORDER_SLACK: Final = 2.1
"""A correlation over n steps below 0.38 - 2.1 / n (0.23 over 14, 0.33 over 40) is not of the same samples; below 0.55 - 2.1 / n where the losses vary
by less than a factor of 1.8 from step to step. Of other samples it was -0.5 to 0.47; of the same ones under dropout of 0.1 to 0.3 0.74 and more
where losses vary so little, and down to 0.03 where nearly all is learnt and dropout is most of what is left."""
ORDER_NOISE: Final = 1.0
ORDER_NOISE_LONG: Final = 1.7
ORDER_LONG: Final = 20
"""A loss that jumps by a factor of 3 and more from step to step tells nothing of its samples; over 20 steps and more it does up to a factor of 5."""
LAG_BOUND: Final = 0.8
LAG_LEAD: Final = 0.35
"""Losses that follow those of an earlier stretch this well, and better than their own by so much, are of that stretch's samples."""
OPTIMIZER_GAP: Final = 1.5e-3
OPTIMIZER_GAP_INEXACT: Final = 1e-2
EXACT_GRADIENT: Final = 2e-4
OPTIMIZER_TIMES: Final = 30.0
OPTIMIZER_NORM_GAP: Final = 5e-3
EXACT_TO_THE_BIT: Final = 1e-5
OPTIMIZER_GAPS_TO_THE_BIT: Final = (7e-4, 1e-3)
"""Without the optimizer's state the losses after an exact first step are off by 0.2 to 9 %, the gradient norms by 0.3 to 9 %. With it, by 0.05 and
0.07 % at most where the first gradient is the same to 2e-4; in bfloat16, or where too few digits are printed to tell, losses by 0.6 %, some 10 times
what the first gradient is off. Where the first step is the same to 1e-5, the next ones were within 0.02 %: there 0.07 and 0.1 % are enough."""
WEIGHTS_RATIO: Final = 1.1
WEIGHTS_WINDOWS: Final = ((6, 5.5, 1.0), (8, 4.0, 1.0), (12, 4.0, 0.8), (16, 4.0, 0.75), (24, 4.0, 0.7))
"""Losses that are 1.1 times those of before in the mean of so many steps, by so many standard errors, and higher in such a share of them.
Under dropout right restarts came to 2.8 standard errors, wrong weights to 4 to 40: SGD at a high rate has caught up after ten steps,
AdamW has not after forty."""
WINDOW_NOISE: Final = 0.6
"""The step-to-step noise of all gaps counts so much against a window whose own gaps lie nearer to each other: that happens by chance, too."""
QUIET_RATIO: Final = 1.02
QUIET_STEPS: Final = (3, 6)
QUIET_SURE: Final = 6.0
"""Where the same steps' losses differ by little from step to step, 2 % from the first step on is enough: each of the first 3 or 6 higher,
their mean by six standard errors of what later pairs vary by. In a right restart the first pairs are the nearest: its weights have had no time
to part. Batch norm over half the micro-batch moved losses by 0.1 to 1.9 %, as much as it made them vary."""


BESIDE_WINDOWS: Final = ((12, 5.0), (16, 4.8), (24, 4.8))
BESIDE_LOOSE: Final = ((12, 3.3), (16, 3.3), (24, 3.3))
LOOSE: Final = 0.75
HIDDEN_RATIO: Final = 1.25
"""Noise that hides a loss 1.25 times that of before hides most wrong weights and a lost optimizer: of honest restarts under dropout with the gradient
norm logged, 1.02 to 1.28 would have been named."""
BESIDE_SHARE: Final = 0.75
BESIDE_LEAST: Final = 0.01
"""Beside the gradient norm, losses that are 1.02 times those of before over so many steps, by so many standard errors. Under dropout 100 right restarts
came to 2.9 of them, one to 4.3; other samples to 2.6; a lost head to 3 to 16. Where losses and norms go together by less than 0.75, right restarts came to 2.9
at most, and 3.3 are enough."""


def weights(case: Case) -> Found | None:
    """A loss that is higher from the first step on: not the weights that the checkpoint was said to hold."""
    pairs, gaps = case.pairs("loss"), case.log_gaps("loss")
    if len(pairs) < LEAST_PAIRS:
        return None if case.twice else _weights_of_new_steps(case)
    if not gaps or case.is_exact() or abs(gaps[0]) <= EXACT:
        return None
    for some, error, bound, share in _windows(gaps):
        if fmean(some) > bound and sum(g > 0 for g in some) >= share * len(some):
            return _other_weights(case, some, error)
    noise = noise_of(dict(enumerate(gaps[QUIET_STEPS[0] : 4 * NEAR])))
    if noise is None:
        return None
    for count in QUIET_STEPS:
        some, error = gaps[:count], noise / math.sqrt(count)
        if fmean(some) > max(math.log(QUIET_RATIO), QUIET_SURE * error) and min(some) > 2 * error:
            return _other_weights(case, some, error)
    return _beside_the_gradient(case)


def _windows(gaps: Sequence[float]) -> Iterator[tuple[Sequence[float], float, float, float]]:
    """The first gaps, the standard error of their mean, the mean that names other weights, and which share of them must be above 0."""
    # A few gaps of other samples may lie near each other by chance: what all of them vary by from step to step is the less lucky measure.
    least = WINDOW_NOISE * (noise_of(dict(enumerate(gaps[: 2 * NEAR]))) or 0.0)
    for count, sure, share in WEIGHTS_WINDOWS:
        some = gaps[:count]
        if len(some) < count:
            break
        error = max(deviation_of(some), least, 0.02) / math.sqrt(count)
        yield some, error, max(math.log(WEIGHTS_RATIO), sure * error), share


def _beside_the_gradient(case: Case) -> Found | None:
    """A loss that is higher than the gradient norm of the same step accounts for.

    Which samples and which dropout masks a step saw moves its loss and its gradient norm together, about zero: taken off by the
    line through both, that noise is mostly gone. Other weights have another loss *for* their gradient, from the first step on.
    """
    for rest, error, bound in _windows_beside(case):
        count, mean = len(rest), fmean(rest)
        if mean > bound and sum(r > 0 for r in rest) >= BESIDE_SHARE * count:
            step, was, now = case.pairs("loss")[0]
            return Found(
                Difference.WEIGHTS,
                f"the loss of the first {count} steps is {math.exp(mean):.3g} times what it was for the gradient norms of the same steps: {now:.4g} for {was:.4g} at step {step}",
                (("loss_ratio", math.exp(mean)), ("error", error), ("loss_before", was), ("loss_after", now)),
            )
    return None


def _windows_beside(case: Case) -> Iterator[tuple[Sequence[float], float, float]]:
    """What is left of the first gaps beside the gradient norm's, the standard error of its mean, and the mean that names other weights."""
    together = _together(case)
    loose = together is not None and together.value < LOOSE
    both = case.log_gaps_of_both()
    for count, sure in BESIDE_LOOSE if loose else BESIDE_WINDOWS:
        if len(both) < count:
            break
        losses, norms = [loss for loss, _ in both[:count]], [norm for _, norm in both[:count]]
        slope = slope_between(norms, losses)
        rest = [loss - slope * norm for loss, norm in zip(losses, norms, strict=True)]
        error = max(deviation_of(rest), BESIDE_LEAST) / math.sqrt(count)
        yield rest, error, max(math.log(QUIET_RATIO), sure * error)


def hidden_by_noise(case: Case) -> str:
    """Which wrong resumes the losses of the steps trained twice cannot show; empty where they would."""
    parts = []
    bounds = [bound for _, _, bound, _ in _windows(case.log_gaps("loss"))]
    bounds += [bound for _, _, bound in _windows_beside(case)]
    least = min(bounds, default=math.inf)
    if least > math.log(HIDDEN_RATIO):
        known = math.isfinite(least)
        parts.append(
            f"weights that raise the loss by less than {math.expm1(least):.0%}" if known else "other weights"
        )
    if not _is_order_seen(case):
        parts.append("another order of the data")
    return " or ".join(parts)


def _is_order_seen(case: Case) -> bool:
    """Whether the losses show that the steps had the samples of before.

    More than not to be accused of others: by Fisher's transformation, other samples reach this correlation once in 700 times.
    """
    together = _together(case)
    if together is None or together.steps < ORDER_PAIRS:
        return case.starts_exact()
    by_chance = math.tanh(ORDER_SHOWN / math.sqrt(together.steps - 3))
    return case.starts_exact() or together.value >= max(together.least, by_chance)


def _other_weights(case: Case, gaps: Sequence[float], error: float) -> Found:
    step, was, now = case.pairs("loss")[0]
    ratio = math.exp(fmean(gaps))
    return Found(
        Difference.WEIGHTS,
        f"the loss of the first {len(gaps)} steps is {ratio:.3g} times that of before: {now:.4g} for {was:.4g} at step {step}",
        (("loss_ratio", ratio), ("error", error), ("loss_before", was), ("loss_after", now)),
    )


def _weights_of_new_steps(case: Case) -> Found | None:
    """The same where no step was trained twice: against the level that the loss had come to."""
    old, new = case.series("loss")
    was, now = last_of(old, 2 * NEAR), first_of(new, LEAST_PAIRS + 1)
    noise = noise_of(last_of(old, 8 * NEAR))
    if noise is None or len(was) < NEAR or len(now) <= LEAST_PAIRS:
        return None
    if min(now) > case.last + 2 * case.every:
        return None
    _, level, error = line_through(was, at=case.last)
    mean = fmean(now.values())
    least = SURE * 1.3 * math.hypot(noise / math.sqrt(len(now)), error)
    if mean - level < max(least, 0.05 * abs(level)) or min(now.values()) < max(was.values()) - noise:
        return None
    return Found(
        Difference.WEIGHTS,
        f"the loss is {mean:.4g} after the resume and was {level:.4g} before, with a noise of {noise:.2g}",
        (("loss_before", level), ("loss_after", mean), ("noise", noise)),
    )


def data_order(case: Case) -> Found | None:
    """Losses that do not rise and fall with those of the same steps, or do so with those of others."""
    if case.is_exact() or case.starts_exact():
        return None
    together = _together(case)
    if together is not None and together.steps >= ORDER_PAIRS:
        count, value, witnesses, _ = together
        divided = case.restart.world is not None and case.restart.world[0] != case.restart.world[1]
        remade = divided or (
            case.restart.micro is not None and case.restart.micro[0] != case.restart.micro[1]
        )
        # The loss of one rank, or of the last micro-batch, is of other samples once those are cut otherwise; the gradient is of all.
        enough = "grad_norm" in witnesses or not remade
        if value < together.least and enough:
            again = _lag(case)
            numbers = (("correlation", value), ("steps", float(count)))
            text = (
                f"the losses of the same steps do not go together: correlation {value:.2f} over {count} steps"
            )
            if again is not None:
                text += (
                    f"; they follow those from step {case.start - again[0]} on: correlation {again[1]:.2f}"
                )
            return Found(Difference.DATA_ORDER, text, numbers)
        return None
    again = _lag(case)
    if again is None:
        return None
    lag, value = again
    return Found(
        Difference.DATA_ORDER,
        f"the losses follow those from step {case.start - lag} on: correlation {value:.2f}",
        (("lag", float(lag)), ("correlation", value)),
    )


class _Together(NamedTuple):
    """Over how many steps, how well together, which values tell, and below what they are of other samples."""

    steps: int
    value: float
    witnesses: tuple[str, ...]
    bound: float

    @property
    def least(self) -> float:
        return self.bound - ORDER_SLACK / self.steps


def _together(case: Case) -> _Together | None:
    """How the loss and the gradient's norm, each without its trend, go together with those of before."""
    found: dict[str, tuple[int, float]] = {}
    bound = ORDER_BOUND_QUIET
    for name in ("loss", "grad_norm"):
        pairs = case.pairs(name)[: 5 * NEAR]
        if len(pairs) < ORDER_PAIRS // 2:
            continue
        steps = [float(s) for s, _, _ in pairs]
        was = without_trend(steps, [_level(b) for _, b, _ in pairs])
        if spread_of(was) > (ORDER_NOISE if len(pairs) < ORDER_LONG else ORDER_NOISE_LONG):
            return None
        if spread_of(was) > ORDER_QUIET:
            bound = ORDER_BOUND
        now = without_trend(steps, [_level(a) for _, _, a in pairs])
        value = correlation(was, now)
        if value is not None:
            found[name] = (len(pairs), value)
    if not found:
        return None
    mean = math.tanh(fmean(math.atanh(max(min(value, 0.999), -0.999)) for _, value in found.values()))
    best = max(value for _, value in found.values())
    return _Together(min(count for count, _ in found.values()), min(mean, best), tuple(found), bound)


def _lag(case: Case) -> tuple[int, float] | None:
    """By how many steps the losses after lie behind others of before that they follow; None where they follow none."""
    old, new = case.series("loss")
    steps = sorted(new)[: 6 * NEAR]
    if len(steps) < ORDER_PAIRS:
        return None
    own = _lag_value(old, new, steps, 0)
    found: list[tuple[float, int]] = []
    for lag in range(case.every, case.start - case.begin + 1, case.every):
        if lag < 2 * case.every:
            continue
        value = _lag_value(old, new, steps, lag)
        if value is not None:
            found.append((value, lag))
    if not found:
        return None
    value, lag = max(found)
    # The best of several hundred places is 0.55 by chance over 30 steps, more over fewer.
    bound = max(LAG_BOUND, math.tanh((SURE + 0.2 * math.log(len(found))) / math.sqrt(max(len(steps) - 5, 1))))
    if value < bound or (own is not None and value - own < LAG_LEAD):
        return None
    return lag, value


def _lag_value(old: Series, new: Series, steps: Sequence[int], lag: int) -> float | None:
    mine = [step for step in steps if step - lag in old]
    if len(mine) < max(ORDER_PAIRS, 0.7 * len(steps)):
        return None
    places = [float(step) for step in mine]
    return correlation(
        without_trend(places, [_level(old[step - lag]) for step in mine]),
        without_trend(places, [_level(new[step]) for step in mine]),
    )


def optimizer(case: Case) -> Found | None:
    """A first loss as before, and then others: the weights are there, what the optimizer had learnt of their gradients is not.

    Told only where the same weights and samples give the same loss; under dropout the first loss is another one already.
    """
    pairs = case.pairs("loss")
    if case.every > 1 or len(pairs) < NEAR // 2 or pairs[0][0] != case.start:
        return None
    rates = case.pairs("lr")[:NEAR]
    rounded = quantum_of(before for _, before, _ in rates)
    if any(abs(after - before) > rounded + LR_SHARE * abs(before) for _, before, after in rates):
        return None  # a schedule that is a step late changes the losses too, and is no other optimizer
    gaps, norms = case.log_gaps("loss"), case.log_gaps("grad_norm")
    digits = _printed_share(case, "loss")
    if len(gaps) < NEAR // 2 or abs(gaps[0]) > EXACT + digits or (norms and abs(norms[0]) > EXACT):
        return None
    # The first gradient tells how exact this training is at all, as far as it is printed: 1e-7 in float32, 4e-4 in bfloat16.
    inexact = max(abs(gaps[0]), abs(norms[0]) if norms else EXACT / 3)
    shown = max(digits, _printed_share(case, "grad_norm")) if norms else digits
    least, least_norm = OPTIMIZER_GAP_INEXACT, OPTIMIZER_NORM_GAP
    if max(inexact, shown) < EXACT_GRADIENT:
        least = OPTIMIZER_GAP
    if max(inexact, shown) < EXACT_TO_THE_BIT:
        least, least_norm = OPTIMIZER_GAPS_TO_THE_BIT
    # Gradients are off by several times what losses are: where losses hardly move at all they tell alone.
    for name, some, bound in (
        ("loss", gaps, max(least, 3 * digits)),
        ("grad norm", norms, max(least_norm, 3 * shown)),
    ):
        rest = [abs(gap) for gap in some[1:8]]
        if len(some) >= NEAR // 2 and median(rest) >= max(bound, OPTIMIZER_TIMES * inexact):
            return Found(
                Difference.OPTIMIZER_STATE,
                f"the {name} of the first step is that of before within {abs(some[0]):.1e}: those of the next {len(rest)} steps are off by {median(rest):.1%}",
                (("first_gap", some[0]), ("next_gaps", median(rest))),
            )
    return None


def _printed_share(case: Case, name: str) -> float:
    """What the printing of a value rounds away, as a share of its first."""
    pairs = case.pairs(name)
    return quantum_of(before for _, before, _ in pairs) / max(abs(pairs[0][1]), 1e-12)


def _level(value: float) -> float:
    """Noise of a loss grows with it."""
    return math.log(value) if value > 1e-12 else value
