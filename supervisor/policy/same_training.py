"""Judges whether a resumed attempt continues the same training, from the values of the steps that were trained twice (pure).

A step that was trained twice should have seen the same samples with the same weights. The values that both attempts reported for it are
compared in order: where the attempt began, samples or tokens per step, learning rate, loss, gradient norm. The first one that differs is
named. Learning rates and counters are exact. Losses differ by float noise (1e-6 to 1e-3 of the loss) or by
dropout, so only their mean over several steps counts against a resume, and only if it is higher. Another order of the data looks like
dropout; if it would not show, the answer is `unknown`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final, TypeAlias

from supervisor.run.records import Difference, Sameness

Table: TypeAlias = Mapping[int, Mapping[str, float]]
"""Steps and what was measured of them, under the names of the series `metrics`."""

LEAST_ROWS: Final = 4
LEAST_PAIRS: Final = 3
LEAST_LOSSES: Final = 8
"""The mean of fewer losses does not count against a resume."""
WINDOW: Final = 24
"""A wrong start shows in its first steps; SGD with a high learning rate has caught up after ten."""
SURE: Final = 4.5
"""Standard errors of the mean. Correct restarts with dropout reached 2.8, wrong weights 4 to 40."""
DOUBTFUL: Final = 2.0
HIDDEN_RATIO: Final = 1.25
"""Losses that are higher by two standard errors, or noise that could hide 1.25 times the loss, leave other weights possible."""
LEAST_NOISE: Final = 0.02
"""Gaps closer to each other than 2 % are so by chance, or change by more once the weights diverge."""
LOSS_RATIO: Final = 1.1
NORM_RATIO: Final = 1.28
"""The smallest wrong weight of an accumulation is 4/3, from one micro-batch of three."""
COUNT_RATIO: Final = 1.2
"""Counts per step (tokens of padded text) vary by a few percent; a wrong global batch is off by a factor of 1.33 (12 for 16) or more."""
RATE_SHARE: Final = 1e-3
"""A learning rate is usually printed with three digits."""
SAME_SHARE: Final = 2e-3
EXACT: Final = 1e-3
"""Float noise: the median difference of the losses as a share of the loss, and of the gradient norms as a logarithm; bfloat16 gives 5e-4."""
SEEN_PAIRS: Final = 14
SEEN_SHARE: Final = 0.7
"""Losses of the same samples differ by less than 0.7 of their variation from step to step; those of other samples by 1.4 times that."""

_COUNTED = re.compile(r"(?:^|[_\s/.])(?:samples?|tokens?|examples?|sequences?|images?|seqs?)(?:$|[_\s/.])")
_NO_COUNT = re.compile(
    r"per|/s$|_s$|/sec|time|rate|speed"
    r"|(?:^|[_\s/.])(?:len|lens|length|lengths|size|max|min|avg|mean|vocab|acc|accuracy|loss|ratio|share)(?:$|[_\s/.])"
)


@dataclass(frozen=True, slots=True)
class Restart:
    """What is known about a restart. Pairs are before and after.

    Attributes:
        resumes_at: the step of the checkpoint that it should load; None: unknown.
        expected: whether it should load one at all.
        accumulation: micro-batches of one rank per step.
        micro: samples in one rank's micro-batch.
        total_steps: the number of steps that the script reports.
    """

    resumes_at: int | None = None
    expected: bool = True
    accumulation: tuple[int, int] | None = None
    micro: tuple[int, int] | None = None
    total_steps: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """`text` gives the reason in one line, with the numbers. `twice` and `new`: measured steps that were compared, and those beyond.

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
        return _unknown("no steps are logged that could be compared")
    both = _Both(before, after, restart)
    found = next((found for test in _TESTS if (found := test(both)) is not None), None) or _agreement(both)
    new = sum(step > max(before) for step in after)
    return replace(found, twice=len(before.keys() & after.keys()), new=new)


def _differs(
    difference: Difference, text: str, *numbers: tuple[str, float], certain: bool = False
) -> Judgement:
    return Judgement(Sameness.DIFFERS, text, difference, numbers, certain=certain)


def _unknown(text: str, *numbers: tuple[str, float]) -> Judgement:
    return Judgement(Sameness.UNKNOWN, text, None, numbers)


def began_below(before: Table, after: Table, at: int) -> int | None:
    """The step after which an attempt began that should have continued from step `at` of `before`, if that is below `at`; else None.

    One logged step proves nothing: an evaluation before the training is logged as step 0. The first step must be below `at` by a logging
    interval, and by at least 2, because a checkpoint's number may be one ahead of the log.
    """
    first = sorted(after)[:2]
    if len(first) < 2:
        return None
    every = _interval(before) if len(before) > 1 else first[1] - first[0]
    if first[0] > at - max(every, 2) or first[1] > at:
        return None
    return first[0] - every if first[0] >= every else 0


class _Both:
    """Both tables by name. `every`: steps from one measured step to the next."""

    def __init__(self, before: Table, after: Table, restart: Restart) -> None:
        self.before, self.after, self.restart = before, after, restart
        self.start, self.every = min(after), _interval(before)

    def pairs(self, name: str) -> list[tuple[int, float, float]]:
        """Step, value before and value after, for the steps that have both."""
        old, new = _column(self.before, name), _column(self.after, name)
        return [(step, old[step], new[step]) for step in sorted(old.keys() & new.keys())]

    def log_gaps(self, name: str) -> list[float]:
        """Logarithms of after / before, because noise is proportional to the loss."""
        return [math.log(a) - math.log(b) for _, b, a in self.pairs(name) if b > 0 and a > 0]


def _where_it_began(both: _Both) -> Judgement | None:
    restart, first = both.restart, min(both.before)
    aim = restart.resumes_at if restart.resumes_at is not None else max(both.before)
    if not restart.expected or aim - first < max(3, 2 * both.every):
        return None
    if both.start > first + both.every or both.start > aim / 2:
        return None
    numbers = (("first_step", both.start), ("resume_step", aim))
    text = f"it began at step {both.start}, not after step {aim}"
    return _differs(Difference.STEP, text, *numbers, certain=len(both.after) >= LEAST_LOSSES)


def _comparable(both: _Both) -> Judgement | None:
    """Whether there are enough steps, and whether a number means the same step before and after."""
    if len(both.after) < LEAST_ROWS:
        return _unknown(f"too few steps are logged after it: {len(both.after)}", ("rows", len(both.after)))
    restart, pair = both.restart, both.restart.accumulation
    if pair is None or pair[0] == pair[1]:
        return None
    totals, at = restart.total_steps, restart.resumes_at
    begins_beyond = at is not None and both.start - at > max(4 * both.every, 0.25 * at)
    if begins_beyond or (totals is not None and totals[0] != totals[1]):
        return _unknown("the log's steps may count micro-batches")
    return None


def _global_batch(both: _Both) -> Judgement | None:
    counted = _counted(both)
    if counted is None:
        return None
    name, was, now = counted
    off = math.log(now / was)
    if abs(off) <= math.log(COUNT_RATIO):
        return None
    micro, accumulation = both.restart.micro, both.restart.accumulation
    if micro is not None and accumulation is not None:
        old, new = (m * a for m, a in zip(micro, accumulation, strict=True))
        if old != new and abs(off - math.log(new / old)) < math.log(COUNT_RATIO):
            return None  # the counter is one rank's, and each of fewer ranks takes more
    numbers = (("counted_before", was), ("counted_after", now))
    text = f"{name} of a step {was:.4g} → {now:.4g}"
    return _differs(Difference.GLOBAL_BATCH, text, *numbers, certain=True)


def _counted(both: _Both) -> tuple[str, float, float] | None:
    """The first counter of samples or tokens, and its median for the same steps; None: nothing is counted."""
    names = {name for table in (both.before, both.after) for row in table.values() for name in row}
    for name in sorted(names):
        if not _COUNTED.search(name.lower()) or _NO_COUNT.search(name.lower()):
            continue
        old, new = _steps_of(_column(both.before, name)), _steps_of(_column(both.after, name))
        twice = sorted(old.keys() & new.keys())
        if len(twice) >= LEAST_PAIRS:
            was, now = median(old[step] for step in twice), median(new[step] for step in twice)
            if was > 0 < now:
                return name, was, now
    return None


def _learning_rate(both: _Both) -> Judgement | None:
    pairs = both.pairs("lr")
    if len(pairs) < LEAST_PAIRS:
        return None
    known = _column(both.before, "lr")
    steps = sorted(known)
    moves = {b: abs(known[b] - known[a]) / (b - a) for a, b in itertools.pairwise(steps)}
    follows = dict(itertools.pairwise(steps))

    def is_off(step: int, was: float, now: float) -> bool:
        # A log may print the rate before or after the scheduler's step.
        moved = max(moves.get(step, 0.0), moves.get(follows.get(step, step), 0.0))
        return abs(now - was) > RATE_SHARE * abs(was) + 1.05 * moved

    off = [is_off(*pair) for pair in pairs]
    if sum(off) < max(2, 0.3 * len(off)) or not all(off[-2:]):
        return None
    step, was, now = pairs[-1]
    numbers = (("step", float(step)), ("lr_before", was), ("lr_after", now))
    text = f"at step {step} it is {now:.4g} and was {was:.4g}"
    return _differs(Difference.LEARNING_RATE, text, *numbers, certain=True)


def _loss(both: _Both) -> Judgement | None:
    """Whether the loss is higher from the first steps on. A lower one may be a running mean that restarts with each attempt."""
    ratio = _ratio(both.log_gaps("loss"), math.log(LOSS_RATIO))
    if ratio is None or _is_exact(both):
        return None
    step, was, now = both.pairs("loss")[0]
    numbers = (("loss_ratio", ratio), ("loss_before", was), ("loss_after", now))
    text = f"the loss of the first steps is {ratio:.3g} times that of before: {now:.4g} for {was:.4g} at step {step}"
    if ratio > 1:
        return _differs(Difference.LOSS, text, *numbers)
    return _gradient_norm(both) or _unknown(text, *numbers)


def _gradient_norm(both: _Both) -> Judgement | None:
    """Whether gradients are weighted differently: an accumulated loss that is not divided, or is divided twice."""
    ratio = _ratio(both.log_gaps("grad_norm"), math.log(NORM_RATIO))
    if ratio is None:
        return None
    text = f"the gradient norm of the first steps is {ratio:.3g} times that of before"
    return _differs(Difference.GRAD_NORM, text, ("grad_norm_ratio", ratio))


def _ratio(gaps: Sequence[float], bound: float) -> float | None:
    """The mean ratio of the first steps to before; None if it is within `bound` and the noise."""
    if len(gaps) < LEAST_LOSSES:
        return None
    noise = max(_deviation(gaps[:WINDOW]), LEAST_NOISE)
    for count in (LEAST_LOSSES, min(WINDOW, len(gaps))):
        mean = fmean(gaps[:count])
        if abs(mean) > max(bound, SURE * noise / math.sqrt(count)):
            return math.exp(mean)
    return None


_TESTS: Final[tuple[Callable[[_Both], Judgement | None], ...]] = (
    _where_it_began,
    _comparable,
    _global_batch,
    _learning_rate,
    _loss,
    _gradient_norm,
)


def _agreement(both: _Both) -> Judgement:
    """No value differs: say how close they are, and whether another order of the data would show."""
    pairs = both.pairs("loss")
    if both.before.keys().isdisjoint(both.after):
        return _unknown("no step was trained twice")
    if len(pairs) < LEAST_PAIRS:
        return _unknown(
            f"the log tells too little: losses of steps that were trained twice: {len(pairs)}, needed {LEAST_PAIRS}"
        )
    counted, rates = _counted(both), both.pairs("lr")
    share = median(abs(a - b) / max(abs(b), 1e-12) for _, b, a in pairs)
    parts = ["begun again at the first step"] if both.start <= min(both.before) < max(both.before) else []
    parts += [f"{counted[0]} of a step {counted[2]:.4g}"] if counted is not None else []
    parts += ["learning rate as before"] if len(rates) >= LEAST_PAIRS else []
    parts.append(f"losses differ by {100 * share:.2g} % (median relative difference)")
    text, gap = f"{len(pairs)} steps trained twice: {', '.join(parts)}", ("loss_gap", share)
    near = share <= SAME_SHARE or _is_exact(both)
    if not near and (hidden := _hidden_by_noise(both)):
        if len(pairs) < SEEN_PAIRS:
            return _unknown(f"too few steps to show {hidden}; {text}", gap)
        return _unknown(f"too noisy to show {hidden}; {text}", gap)
    result = Sameness.SAME if near and (rates or counted) else Sameness.SAME_WITHIN_NOISE
    return Judgement(result, text, None, (gap,))


def _is_exact(both: _Both) -> bool:
    """Whether the gradients are the same as before. Then weights and samples are the same, too, whatever the loss averages."""
    gaps = both.log_gaps("grad_norm")[:WINDOW]
    return len(gaps) >= LEAST_PAIRS and median(map(abs, gaps)) <= EXACT


def _hidden_by_noise(both: _Both) -> str:
    """Which wrong resumes the losses of the steps trained twice do not rule out; empty: none."""
    gaps, parts = both.log_gaps("loss"), list[str]()
    first = gaps[:WINDOW]
    error = max(_deviation(first), LEAST_NOISE) / math.sqrt(len(first)) if first else math.inf
    if SURE * error > math.log(HIDDEN_RATIO) or fmean(first) > DOUBTFUL * error:
        parts.append("other weights")
    levels = [math.log(b) for _, b, _ in both.pairs("loss") if b > 0]
    if len(gaps) < SEEN_PAIRS or _step_noise(gaps) > SEEN_SHARE * _step_noise(levels):
        parts.append("another order of the data")
    return " or ".join(parts)


def _interval(table: Table) -> int:
    gaps = [b - a for a, b in itertools.pairwise(sorted(table))]
    return max(int(median(gaps)), 1) if gaps else 1


def _column(table: Table, name: str) -> dict[int, float]:
    """A value by step, without NaN and without values whose square is not finite."""
    found = {step: table[step].get(name, math.nan) for step in sorted(table)}
    return {step: value for step, value in found.items() if abs(value) < 1e100}


def _steps_of(column: Mapping[int, float]) -> dict[int, float]:
    """What each step adds to a counter; if a column does not grow, its values count one step each."""
    grown = {
        b: (column[b] - column[a]) / (b - a) for a, b in itertools.pairwise(column) if column[b] >= column[a]
    }
    grows = len(grown) >= 0.9 * (len(column) - 1) and len(grown) > 0 and median(grown.values()) > 0
    return grown if grows else dict(column)


def _deviation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))


def _step_noise(values: Sequence[float]) -> float:
    """The standard deviation of a step's value around its trend, from the differences of adjacent steps."""
    return _deviation([b - a for a, b in itertools.pairwise(values)]) / math.sqrt(2)
