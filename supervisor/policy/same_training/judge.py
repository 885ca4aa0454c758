"""Whether a resumed attempt goes on with the same training: what it logs, against what was logged of the same steps before (pure).

Two tables of steps, before and after, and the plan of the restart go in; one judgement comes out. The tests stand in `_TESTS`, in order: a wrong
start changes everything after it, a wrong batch changes the losses, so the first that finds something names the difference.

A step that was trained twice saw the same samples with the same weights, or should have. Its two losses then differ by float noise where all is
deterministic (1e-6 to 1e-3 of the loss; bfloat16 some 1e-2), by dropout's own noise otherwise, and in both cases they rise and fall together from step
to step, because what moves the loss of a step is mostly which samples it saw. That correlation tells the order of the data; the mean of the
differences tells the weights; learning rates and counters are exact but for their printed digits.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, NamedTuple

from supervisor.policy.same_training.case import Case, Found, Restart
from supervisor.policy.same_training.learning_rate import learning_rate
from supervisor.policy.same_training.series import (
    LEAST_PAIRS,
    LR_SHARE,
    NEAR,
    Row,
    Series,
    Table,
    column_of,
    correlation,
    deviation_of,
    error_of_median,
    first_of,
    last_of,
    line_through,
    noise_of,
    quantum_of,
    slope_of,
    spread_of,
    without_trend,
)
from supervisor.run.records import Difference, Sameness

# -- how much is needed, and what is too much -----------------------------------------------------------------------------------------------------
LEAST_ROWS: Final = 4
"""Fewer logged steps after a resume tell nothing but where it began."""
RATIO_OF_COUNTS: Final = 1.2
"""Counts of a step (tokens of padded text) vary by some percent from step to step; a wrong global batch is a factor of 1.33 (12 for 16) or more."""
RATIO_OF_NORMS: Final = 1.28
"""Gradient norms of the same samples agree within percents; the least wrong weight of an accumulation is 4/3, by one micro-batch of three."""
WEIGHTING_SPREAD: Final = 0.15
"""The ratio of two weightings of one loss is the same at every step, but for what the wrong gradients make of it."""
EXACT_FACTOR: Final = 0.01
"""Before any wrong update the first step's ratio is the factor itself: its loss is then exact too, or the two steps after it are off by 26 % at most."""
FACTOR_SPREAD: Final = 0.13
"""A ratio is named by a factor of the plan when it lies within 13 %: the factors 1.5, 2, 3, 4 lie 33 % apart at least."""
SURE: Final = 4.5
"""Standard errors. Losses have heavier tails than a normal distribution; 4.5 of it come by chance 7 times in a million."""
ORDER_PAIRS: Final = 14
"""Below this the correlation of two orders of data (0 ± 0.3) and that of one (0.5 to 1) cannot be told apart."""
ORDER_BOUND: Final = 0.38
ORDER_SLACK: Final = 2.1
"""A correlation over n steps below 0.38 - 2.1 / n (0.23 over 14, 0.33 over 40): not the same samples. Of other samples it was -0.4 to 0.3,
of the same ones under dropout of 0.1 to 0.3 0.33 to 0.99."""
ORDER_NOISE: Final = 1.0
"""A loss that jumps by a factor of 3 and more from step to step (a diverging training) tells nothing of its samples."""
LAG_BOUND: Final = 0.8
LAG_LEAD: Final = 0.35
"""Losses that follow those of an earlier stretch this well, and better than their own by so much, are of that stretch's samples."""
SAME_SHARE: Final = 2e-3
"""Float noise: the median difference of the losses of a step, as a share of the loss."""
EXACT: Final = 1e-3
"""So near are values of the same weights and samples where nothing is drawn at random (logarithm of a ratio); bfloat16 gives 5e-4."""
OPTIMIZER_GAP: Final = 1.5e-3
OPTIMIZER_GAP_INEXACT: Final = 1e-2
EXACT_GRADIENT: Final = 2e-4
OPTIMIZER_TIMES: Final = 30.0
"""Without the optimizer's state the losses after an exact first step are off by 0.2 to 9 %; with it by 0.05 % at most where the first gradient
is the same to 2e-4, and in bfloat16, or where too few digits are printed to tell, by 0.6 %, some 10 times what the first gradient is off."""
BELOW_SURE: Final = 3.0
"""A beginning whose loss is lower than that of the first beginning by three standard errors is none."""
WEIGHTS_RATIO: Final = 1.1
WEIGHTS_WINDOWS: Final = ((6, 5.5, 1.0), (8, 4.0, 1.0), (12, 4.0, 0.8), (16, 4.0, 0.75), (24, 4.0, 0.7))
"""Losses that are 1.1 times those of before in the mean of so many steps, by so many standard errors, and higher in such a share of them.
Under dropout right restarts came to 2.8 standard errors, wrong weights to 4 to 40: SGD at a high rate has caught up after ten steps,
AdamW has not after forty."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`text` says it in one line with the numbers. `twice` and `new`: logged steps that were compared, and those beyond.

    `certain`: more steps would not change it.
    """

    result: Sameness
    text: str
    difference: Difference | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    twice: int = 0
    new: int = 0
    certain: bool = False


def judge(before: Table, after: Table, restart: Restart) -> Judgement:
    """Compare a resumed attempt with what came before it."""
    if not before or not after:
        return Judgement(Sameness.UNKNOWN, "no steps are logged that could be compared")
    case = Case(before, after, restart)
    twice, new = len(case.twice), len(case.new)
    for test in _TESTS:
        found = test(case)
        if found is not None:
            result = Sameness.DIFFERS if found.difference is not None else Sameness.UNKNOWN
            return Judgement(result, found.text, found.difference, found.numbers, twice, new, found.certain)
    return _agreement(case)


# -- where it began -------------------------------------------------------------------------------------------------------------------------------


def _where_it_began(case: Case) -> Found | None:
    restart = case.restart
    aim = restart.resumes_at if restart.resumes_at is not None else case.last
    if not restart.expected or aim - case.begin < max(3, 2 * case.every):
        return None
    if case.start > case.begin + case.every or case.start > aim / 2:
        return None
    numbers: list[tuple[str, float]] = [("first_step", case.start), ("resume_step", aim)]
    old, new = case.series("loss")
    first = first_of(new, NEAR // 2)
    text = f"it began at step {case.start}, not after step {aim}"
    if first:
        level = fmean(first.values())
        at_start = fmean(first_of(old, NEAR // 2).values()) if old else math.nan
        near = [old[step] for step in old if abs(step - aim) <= NEAR * case.every]
        at_aim = fmean(near) if near else math.nan
        numbers += [("loss", level), ("loss_at_start", at_start), ("loss_at_resume", at_aim)]
        if abs(level - at_aim) < 0.5 * abs(level - at_start) or _is_below(case):
            return Found(
                Difference.STEP_COUNTER,
                f"{text}: the loss is {level:.4g}, at the first steps it was {at_start:.4g} and near step {aim} {at_aim:.4g}",
                tuple(numbers),
                certain=len(first) >= NEAR // 2,
            )
        text += f": the loss is {level:.4g}, near step {aim} it was {at_aim:.4g}"
    return Found(Difference.FROM_STEP_0, text, tuple(numbers), certain=len(first) >= NEAR // 2)


def _is_below(case: Case) -> bool:
    """Whether the first steps have a lower loss than they had: of the same samples, if the order of the data began again too."""
    gaps = _log_gaps(case, "loss")[: 2 * NEAR]
    if len(gaps) < NEAR // 2:
        return False
    error = max(deviation_of(gaps), 0.02) / math.sqrt(len(gaps))
    return fmean(gaps) < -max(BELOW_SURE * error, math.log(WEIGHTS_RATIO) / 2)


def _too_little(case: Case) -> Found | None:
    rows = len(case.after)
    if rows < LEAST_ROWS:
        return Found(None, f"only {rows} steps are logged after it", (("rows", rows),))
    return None


# -- the global batch as the script counts it -----------------------------------------------------------------------------------------------------

_COUNTED = re.compile(r"(?:^|[_\s/.])(?:samples?|tokens?|examples?|sequences?|images?|seqs?)(?:$|[_\s/.])")
_A_RATE = re.compile(r"(?:per|/s$|_s$|/sec|time|rate|speed)")
_A_SIZE = re.compile(
    r"(?:^|[_\s/.])(?:len|lens|length|lengths|size|max|min|avg|mean|vocab|acc|accuracy|loss|ratio|share)(?:$|[_\s/.])"
)


class _Counted(NamedTuple):
    """What the script counts of a step. `noise`: the standard error of the logarithm of the ratio. `same_steps`: of the same steps, by number."""

    name: str
    was: float
    now: float
    noise: float
    same_steps: bool


def _counter_ratio(case: Case) -> _Counted | None:
    """The first counter of samples or tokens; None: nothing is counted.

    Steps that were trained twice are compared with themselves: a sequence length or a batch that grows by a schedule is no
    other global batch.
    """
    names = {name for row in (*_some(case.before), *_some(case.after)) for name in row}
    for name in sorted(names):
        low = name.lower()
        if not _COUNTED.search(low) or _A_RATE.search(low) or _A_SIZE.search(low):
            continue
        old, new = (_steps_of(column) for column in case.series(name))
        twice = old.keys() & new.keys()
        same = len(twice) >= LEAST_PAIRS
        was = [old[step] for step in twice] if same else list(last_of(old, 4 * NEAR).values())
        now = [new[step] for step in twice] if same else list(first_of(new, 4 * NEAR).values())
        if len(was) >= LEAST_PAIRS and len(now) >= LEAST_PAIRS and median(was) > 0 < median(now):
            noise = math.hypot(
                error_of_median(list(map(math.log, filter(_positive, was)))),
                error_of_median(list(map(math.log, filter(_positive, now)))),
            )
            return _Counted(name, median(was), median(now), noise, same)
    return None


def _steps_of(column: Series) -> dict[int, float]:
    """What each step adds to a counter; of a column that does not grow, its values: they count one step each."""
    steps = sorted(column)
    grown = {
        b: (column[b] - column[a]) / (b - a) for a, b in itertools.pairwise(steps) if column[b] >= column[a]
    }
    grows = len(grown) >= 0.9 * (len(steps) - 1) and len(grown) > 0 and median(grown.values()) > 0
    return grown if grows else dict(column)


def _global_batch(case: Case) -> Found | None:
    counted = _counter_ratio(case)
    if counted is None:
        return None
    name, was, now, noise, same_steps = counted
    ratio = now / was
    if abs(math.log(ratio)) <= max(math.log(RATIO_OF_COUNTS), SURE * noise):
        return None
    if (scale := _step_scale(case)) is not None and abs(math.log(ratio * scale)) < math.log(RATIO_OF_COUNTS):
        return _steps_of_micro_batches(scale)
    restart = case.restart
    if (
        restart.world is not None
        and restart.world[0] != restart.world[1]
        and restart.accumulation
        and restart.micro
    ):
        old, new = (m * a for m, a in zip(restart.micro, restart.accumulation, strict=True))
        if old != new and abs(math.log(ratio * old / new)) < math.log(RATIO_OF_COUNTS):
            return None  # the counter is one rank's, and each rank takes more where there are fewer
    if not same_steps and all(
        abs(math.log(ratio / by)) >= math.log(RATIO_OF_COUNTS) for by in case.half_changes()
    ):
        return (
            None  # other steps may count more by a schedule: only what a half-made change explains is named
        )
    return Found(
        Difference.GLOBAL_BATCH,
        f"{name} of a step {was:.4g} → {now:.4g}",
        (("counted_before", was), ("counted_after", now)),
        certain=True,
    )


def _step_scale(case: Case) -> float | None:
    """How many of the steps after make one before, where steps count micro-batches; None where they do not."""
    pair, restart = case.restart.accumulation, case.restart
    if pair is None or pair[0] == pair[1]:
        return None
    scale = pair[1] / pair[0]
    if restart.total_steps is not None:
        old, new = restart.total_steps
        return scale if old and abs(new / old / scale - 1) < 0.02 else None
    # The schedule by the samples seen: its learning rate then moves by so much less from one logged step to the next.
    old_lr, new_lr = case.series("lr")
    was, now = slope_of(last_of(old_lr, NEAR)), slope_of(first_of(new_lr, NEAR))
    if was is None or now is None or not was or not now:
        return None
    return (
        scale if abs(math.log(abs(was / now)) - math.log(scale)) < FACTOR_SPREAD and was * now > 0 else None
    )


def _steps_of_micro_batches(scale: float) -> Found:
    return Found(
        None,
        f"the log's steps count micro-batches: {scale:.3g} of them now make one of before",
        (("scale", scale),),
    )


def _counts_micro_batches(case: Case) -> Found | None:
    """Steps that the script itself says it has more of, or that begin so much further on: nothing can be compared by number."""
    restart = case.restart
    if restart.total_steps is not None:
        scale = _step_scale(case)
        if scale is not None:
            return _steps_of_micro_batches(scale)
        if restart.total_steps[0] == restart.total_steps[1]:
            return None
        # Else they may be the ends of the epochs that the bars stood in (Lightning's names no number of epochs).
    if (
        restart.accumulation is None
        or restart.resumes_at is None
        or restart.accumulation[0] == restart.accumulation[1]
    ):
        return None
    old, new = restart.accumulation
    # The checkpoint counts optimizer steps or micro-batches of before.
    for scale in (new / old, float(new)):
        begins = restart.resumes_at * scale
        if (
            scale > 1
            and abs(case.start - begins) <= 2 * max(case.every, 1) * new
            and begins > restart.resumes_at + 4 * new * case.every
        ):
            return _steps_of_micro_batches(scale)
    return None


# -- how the accumulation is weighted -------------------------------------------------------------------------------------------------------------


def _weighting(case: Case) -> Found | None:
    factors = case.factors()
    if not factors:
        return None
    exact = _exact_factor(case, factors)
    if exact is not None:
        return exact
    for name in ("grad_norm", "loss"):
        ratio = _log_ratio(case, name)
        if ratio is None:
            continue
        value, error = ratio
        if abs(value) <= max(math.log(RATIO_OF_NORMS), SURE * error):
            continue
        near = min(factors, key=lambda one: abs(value - math.log(factors[one])))
        if abs(value - math.log(factors[near])) > FACTOR_SPREAD + error:
            continue
        if (
            name == "grad_norm"
            and value > 0
            and case.twice
            and not _is_factor_of_loss(case, factors)
            and _weights(case) is not None
        ):
            continue  # wrong weights have larger gradients too
        what = name.replace("_", " ")
        return Found(
            Difference.ACCUMULATION_WEIGHTING,
            f"the {what} is {math.exp(value):.3g} times that of before: {near} is {factors[near]:.3g}",
            ((f"{name}_ratio", math.exp(value)), ("factor", factors[near])),
        )
    return None


def _exact_factor(case: Case, factors: Mapping[str, float]) -> Found | None:
    """A factor that the first step shows to its printed digits, before the wrong gradients have changed the weights."""
    pairs, losses = case.pairs("grad_norm"), _log_gaps(case, "loss")
    norms = _log_gaps(case, "grad_norm")
    if min(len(norms), len(losses)) < LEAST_PAIRS or pairs[0][0] != case.start or pairs[0][1] <= 0:
        return None
    digits = quantum_of(before for _, before, _ in pairs) / pairs[0][1]
    for factor, times in factors.items():
        off = [abs(gap - math.log(times)) for gap in norms[:LEAST_PAIRS]]
        first = min(
            abs(losses[0]), abs(losses[0] - math.log(times))
        )  # the loss is printed as it is, or weighted too
        if digits > EXACT_FACTOR or off[0] > EXACT_FACTOR + digits:
            continue
        if first <= EXACT_FACTOR / 2 or max(off) <= 2 * FACTOR_SPREAD:
            return Found(
                Difference.ACCUMULATION_WEIGHTING,
                f"the grad norm is {math.exp(norms[0]):.3g} times that of before: {factor} is {times:.3g}",
                (("grad_norm_ratio", math.exp(norms[0])), ("factor", times)),
            )
    return None


def _is_factor_of_loss(case: Case, factors: Mapping[str, float]) -> bool:
    """Whether the loss is off by a factor of the plan too: then it is weighted as the gradient is."""
    ratio = _log_ratio(case, "loss")
    return ratio is not None and any(
        abs(ratio[0] - math.log(factor)) < FACTOR_SPREAD for factor in factors.values()
    )


def _log_ratio(case: Case, name: str) -> tuple[float, float] | None:
    """Median of the logarithm of after / before and its standard error: of the first steps trained twice, else against the level before."""
    pairs = [(b, a) for _, b, a in case.pairs(name) if b > 0 and a > 0][: 2 * NEAR]
    if len(pairs) >= LEAST_PAIRS:
        logs = [math.log(a) - math.log(b) for b, a in pairs]
        if name == "loss" and spread_of(logs) > WEIGHTING_SPREAD:
            return None
        return median(logs), error_of_median(logs) + 0.01
    if case.twice:
        return None
    old, new = case.series(name)
    was = {s: math.log(v) for s, v in last_of(old, 2 * NEAR).items() if v > 0}
    now = {s: math.log(v) for s, v in first_of(new, 2 * NEAR).items() if v > 0}
    if name == "loss" or len(was) < NEAR or len(now) < NEAR:
        return None
    slope, level, error = line_through(was, at=case.last)
    # What goes on as before may as well stay where it is: the smaller change counts.
    change = min(
        (median(now.values()) - level, fmean(v - level - slope * (s - case.last) for s, v in now.items())),
        key=abs,
    )
    return change, math.hypot(error, error_of_median(list(now.values()))) + 0.03


# -- weights, order of the data, optimizer --------------------------------------------------------------------------------------------------------


def _log_gaps(case: Case, name: str) -> list[float]:
    """Logarithms of after / before of the steps trained twice: noise grows with a loss, so shares of it compare."""
    return [
        math.log(after) - math.log(before)
        for _, before, after in case.pairs(name)
        if before > 0 and after > 0
    ]


def _is_exact(case: Case) -> bool:
    """Whether the gradients of all ranks are those of before: then weights, samples and optimizer are too, whatever the loss is a mean of."""
    gaps = _log_gaps(case, "grad_norm")[: 2 * NEAR]
    return len(gaps) >= LEAST_PAIRS and median(map(abs, gaps)) <= EXACT


def _weights(case: Case) -> Found | None:
    """A loss that is higher from the first step on: not the weights that the checkpoint was said to hold."""
    pairs, gaps = case.pairs("loss"), _log_gaps(case, "loss")
    if len(pairs) < LEAST_PAIRS:
        return None if case.twice else _weights_of_new_steps(case)
    if not gaps or _is_exact(case) or abs(gaps[0]) <= EXACT:
        return None
    for count, sure, share in WEIGHTS_WINDOWS:
        some = gaps[:count]
        if len(some) < count:
            break
        mean, error = fmean(some), max(deviation_of(some), 0.02) / math.sqrt(count)
        if mean > max(math.log(WEIGHTS_RATIO), sure * error) and sum(g > 0 for g in some) >= share * count:
            step, was, now = pairs[0]
            return Found(
                Difference.WEIGHTS,
                f"the loss of the first {count} steps is {math.exp(mean):.3g} times that of before: {now:.4g} for {was:.4g} at step {step}",
                (("loss_ratio", math.exp(mean)), ("error", error), ("loss_before", was), ("loss_after", now)),
            )
    return None


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


def _data_order(case: Case) -> Found | None:
    """Losses that do not rise and fall with those of the same steps, or do so with those of others."""
    if _is_exact(case):
        return None
    together = _together(case)
    if together is not None and together[0] >= ORDER_PAIRS:
        count, value, witnesses = together
        divided = case.restart.world is not None and case.restart.world[0] != case.restart.world[1]
        remade = divided or (
            case.restart.micro is not None and case.restart.micro[0] != case.restart.micro[1]
        )
        # The loss of one rank, or of the last micro-batch, is of other samples once those are cut otherwise; the gradient is of all.
        enough = "grad_norm" in witnesses or not remade
        if value < ORDER_BOUND - ORDER_SLACK / count and enough:
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


def _together(case: Case) -> tuple[int, float, tuple[str, ...]] | None:
    """Over how many steps, how well together, and which values tell: the loss and the gradient's norm, each without its trend."""
    found: dict[str, tuple[int, float]] = {}
    for name in ("loss", "grad_norm"):
        pairs = case.pairs(name)[: 5 * NEAR]
        if len(pairs) < ORDER_PAIRS // 2:
            continue
        steps = [float(s) for s, _, _ in pairs]
        was = without_trend(steps, [_level(b) for _, b, _ in pairs])
        if spread_of(was) > ORDER_NOISE:
            return None
        now = without_trend(steps, [_level(a) for _, _, a in pairs])
        value = correlation(was, now)
        if value is not None:
            found[name] = (len(pairs), value)
    if not found:
        return None
    mean = math.tanh(fmean(math.atanh(max(min(value, 0.999), -0.999)) for _, value in found.values()))
    best = max(value for _, value in found.values())
    return min(count for count, _ in found.values()), min(mean, best), tuple(found)


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


def _optimizer(case: Case) -> Found | None:
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
    gaps, norms = _log_gaps(case, "loss"), _log_gaps(case, "grad_norm")
    digits = quantum_of(before for _, before, _ in pairs) / max(abs(pairs[0][1]), 1e-12)
    if len(gaps) < NEAR // 2 or abs(gaps[0]) > EXACT + digits or (norms and abs(norms[0]) > EXACT):
        return None
    # The first gradient tells how exact this training is at all, as far as it is printed: 1e-7 in float32, 4e-4 in bfloat16.
    inexact = max(abs(gaps[0]), abs(norms[0]) if norms else EXACT / 3)
    shown = digits
    if norms:
        shown = max(
            digits, quantum_of(b for _, b, _ in case.pairs("grad_norm")) / case.pairs("grad_norm")[0][1]
        )
    least = OPTIMIZER_GAP if max(inexact, shown) < EXACT_GRADIENT else OPTIMIZER_GAP_INEXACT
    rest = median(map(abs, gaps[1:8]))
    if rest < max(least, 3 * digits, OPTIMIZER_TIMES * inexact):
        return None
    return Found(
        Difference.OPTIMIZER_STATE,
        f"the loss of the first step is that of before within {abs(gaps[0]):.1e}: those of the next {len(gaps[1:8])} steps are off by {rest:.1%}",
        (("first_gap", gaps[0]), ("next_gaps", rest)),
    )


_TESTS: Final[tuple[Callable[[Case], Found | None], ...]] = (
    _where_it_began,
    _too_little,
    _counts_micro_batches,
    _global_batch,
    learning_rate,
    _weighting,
    _weights,
    _optimizer,
    _data_order,
)


def _agreement(case: Case) -> Judgement:
    """Nothing speaks against it: how much speaks for it."""
    twice, new = len(case.twice), len(case.new)
    parts: list[str] = []
    if case.start <= case.begin and case.last > case.start:
        parts.append("begun again at the first step")
    numbers: list[tuple[str, float]] = []
    counted = _counter_ratio(case)
    if counted is not None:
        parts.append(f"{counted.name} of a step {counted.now:.4g}")
    rates = case.pairs("lr")
    if len(rates) >= LEAST_PAIRS:
        parts.append("learning rate as before")
    pairs = case.pairs("loss")
    if len(pairs) >= LEAST_PAIRS:
        shares = [abs(a - b) / max(abs(b), 1e-12) for _, b, a in pairs]
        share = median(shares)
        numbers.append(("loss_gap", share))
        parts.append(f"losses within {share:.1e}")
        exact = (share <= SAME_SHARE or _is_exact(case)) and len(rates) + (counted is not None) > 0
        text = f"{len(pairs)} steps trained twice: {', '.join(parts)}"
        result = Sameness.SAME if exact else Sameness.SAME_WITHIN_NOISE
        return Judgement(result, text, None, tuple(numbers), twice, new)
    old, after = case.series("loss")
    if (
        len(old) >= NEAR
        and len(after) >= NEAR
        and (counted is not None or len(column_of(case.after, "lr")) >= NEAR)
    ):
        parts.append("loss goes on where it was")
        text = f"{len(after)} new steps and none trained twice: {', '.join(parts)}"
        return Judgement(Sameness.SAME_WITHIN_NOISE, text, None, (), twice, new)
    return Judgement(
        Sameness.UNKNOWN,
        "the log tells too little: no loss of a step that was trained twice",
        None,
        (),
        twice,
        new,
    )


def _some(table: Table) -> list[Row]:
    rows = list(table.values())
    return rows[:3] + rows[-3:]


def _positive(value: float) -> bool:
    return value > 0


def _level(value: float) -> float:
    """Noise of a loss grows with it."""
    return math.log(value) if value > 1e-12 else value
