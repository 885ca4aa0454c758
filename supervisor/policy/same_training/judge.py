"""Whether a resumed attempt continues with the same training: what it logs, against what was logged of the same steps before (pure).

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
from supervisor.policy.same_training.paired import (
    ORDER_PAIRS,
    WEIGHTS_RATIO,
    data_order,
    hidden_by_noise,
    optimizer,
    weights,
)
from supervisor.policy.same_training.series import (
    LEAST_PAIRS,
    NEAR,
    SURE,
    Row,
    Series,
    Table,
    column_of,
    deviation_of,
    error_of_median,
    first_of,
    gaps_between,
    last_of,
    line_through,
    quantum_of,
    slope_of,
    spread_of,
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
SAME_SHARE: Final = 2e-3
"""Float noise: the median difference of the losses of a step, as a share of the loss."""
BELOW_SURE: Final = 3.0
BELOW_SHARE: Final = 0.3
"""A beginning whose loss is lower than that of the first beginning by three standard errors, and by 30 % of what was learnt since, is none:
weights made by another seed begin some percent higher or lower too."""


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


def began_below(before: Table, after: Table, at: int) -> int | None:
    """The step after which an attempt began that was to go on from step `at` of `before`, where it made steps below; else None.

    One logged step shows nothing: an evaluation before the training is logged as step 0. The first is below by a logging interval, and
    by 2 at least, as a checkpoint's number may be one ahead of the log's.
    """
    steps, first = sorted(before), sorted(after)[:2]
    if len(first) < 2:
        return None
    every = max(int(median(gaps_between(steps))), 1) if len(steps) > 1 else first[1] - first[0]
    if first[0] > at - max(every, 2) or first[1] > at:
        return None
    return first[0] - every if first[0] >= every else 0


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
        if abs(level - at_aim) < 0.5 * abs(level - at_start) or (
            at_start - level > BELOW_SHARE * abs(at_start - at_aim) and _is_below(case)
        ):
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
    gaps = case.log_gaps("loss")[: 2 * NEAR]
    if len(gaps) < NEAR // 2:
        return False
    error = max(deviation_of(gaps), 0.02) / math.sqrt(len(gaps))
    return fmean(gaps) < -max(BELOW_SURE * error, math.log(WEIGHTS_RATIO) / 2)


def _too_little(case: Case) -> Found | None:
    rows = len(case.after)
    if rows < LEAST_ROWS:
        return Found(None, f"too few steps are logged after it: {rows}", (("rows", rows),))
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
        if name == "loss" and not _gradient_agrees(case, math.log(factors[near])):
            continue  # a loss that is weighted has gradients that are
        if (
            name == "grad_norm"
            and value > 0
            and case.twice
            and not _is_factor_of_loss(case, factors)
            and weights(case) is not None
        ):
            continue  # wrong weights have larger gradients too
        what = name.replace("_", " ")
        return Found(
            Difference.ACCUMULATION_WEIGHTING,
            f"the {what} is {math.exp(value):.3g} times that of before: {near} is {factors[near]:.3g}",
            ((f"{name}_ratio", math.exp(value)), ("factor", factors[near])),
        )
    return None


def _gradient_agrees(case: Case, weight: float) -> bool:
    """Whether the first gradient norms of the same steps are off by half of that weight at least; they are not logged: it may be."""
    norms = case.log_gaps("grad_norm")[:LEAST_PAIRS]
    return not norms or median(norms) / weight > 0.5


def _exact_factor(case: Case, factors: Mapping[str, float]) -> Found | None:
    """A factor that the first step shows to its printed digits, before the wrong gradients have changed the weights."""
    pairs, losses = case.pairs("grad_norm"), case.log_gaps("loss")
    norms = case.log_gaps("grad_norm")
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
    # What continues as before may as well stay where it is: the smaller change counts.
    change = min(
        (median(now.values()) - level, fmean(v - level - slope * (s - case.last) for s, v in now.items())),
        key=abs,
    )
    return change, math.hypot(error, error_of_median(list(now.values()))) + 0.03


_TESTS: Final[tuple[Callable[[Case], Found | None], ...]] = (
    _where_it_began,
    _too_little,
    _counts_micro_batches,
    _global_batch,
    learning_rate,
    _weighting,
    weights,
    optimizer,
    data_order,
)


_TELLING: Final = (("lr", "learning rate"), ("grad_norm", "gradient norm"))


def _agreement(case: Case) -> Judgement:
    """Nothing speaks against it: how much speaks for it."""
    twice, new = len(case.twice), len(case.new)
    parts: list[str] = []
    if case.start <= case.begin and case.last > case.start:
        parts.append("begun again at the first step")
    counted = _counter_ratio(case)
    if counted is not None:
        parts.append(f"{counted.name} of a step {counted.now:.4g}")
    if len(case.pairs("lr")) >= LEAST_PAIRS:
        parts.append("learning rate as before")
    pairs = case.pairs("loss")
    if len(pairs) >= LEAST_PAIRS:
        return _of_the_same_steps(case, pairs, parts, counted=counted is not None)
    old, after = case.series("loss")
    text = f"the log tells too little: losses of steps that were trained twice: {len(pairs)}, needed {LEAST_PAIRS}"
    if (
        len(old) >= NEAR
        and len(after) >= NEAR
        and (counted is not None or len(column_of(case.after, "lr")) >= NEAR)
    ):
        parts.append("loss continues where it was")
        hidden = "another order of the data or another optimizer would not show"
        text = f"no step was trained twice, so {hidden}; {len(after)} new steps: {', '.join(parts)}"
    return Judgement(Sameness.UNKNOWN, text, None, (), twice, new)


def _of_the_same_steps(
    case: Case, pairs: Sequence[tuple[int, float, float]], parts: list[str], *, counted: bool
) -> Judgement:
    """The same of steps that were trained twice: by how much their losses differ, and what that would hide. `parts`: what else agrees."""
    share = median(abs(a - b) / max(abs(b), 1e-12) for _, b, a in pairs)
    parts = [*parts, f"losses differ by {100 * share:.2g} % (median relative difference)"]
    near = share <= SAME_SHARE or case.is_exact()
    unlogged = [words for name, words in _TELLING if len(case.pairs(name)) < LEAST_PAIRS]
    if unlogged and not near:
        parts.append(f"not logged: {' and '.join(unlogged)}")
    text = f"{len(pairs)} steps trained twice: {', '.join(parts)}"
    result = Sameness.SAME if near and (case.pairs("lr") or counted) else Sameness.SAME_WITHIN_NOISE
    if not near and (hidden := hidden_by_noise(case)):
        few = len(pairs) < ORDER_PAIRS
        result = Sameness.UNKNOWN
        text = f"too few steps to show {hidden}; {text}" if few else f"too noisy to show {hidden}; {text}"
    return Judgement(result, text, None, (("loss_gap", share),), len(case.twice), len(case.new))


def _some(table: Table) -> list[Row]:
    rows = list(table.values())
    return rows[:3] + rows[-3:]


def _positive(value: float) -> bool:
    return value > 0
