"""Judges whether a resumed attempt continues the same training run by comparing the steps that were trained twice (pure).

A step that was trained twice should have seen the same samples with the same weights. The values that both attempts
reported for it are compared in this order: where the attempt began, learning rate, loss, gradient norm. The first
difference is reported. Whether the batch matches the plan is measured in the processes
(`keeper.monitoring.measured_facts`). Losses differ because of float noise (1e-6 to 1e-3 of the loss) or dropout, so
only their mean over several steps counts against a resume, and only if it is higher. A different data order looks
like dropout. If a difference would not show, the answer is `unknown`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Final, TypeAlias

from supervisor.run.records import Difference, Sameness

Table: TypeAlias = Mapping[int, Mapping[str, float]]
"""Measured values, keyed by step and then by name, as in the `metrics` series."""

LEAST_ROWS: Final = 4
LEAST_PAIRS: Final = 3
LEAST_LOSSES: Final = 8
"""The minimum number of losses whose mean can count against a resume."""
WINDOW: Final = 24
"""A wrong starting point shows up in the first steps. SGD with a high learning rate catches up within ten steps."""
SURE: Final = 4.5
"""Threshold in standard errors of the mean. Correct restarts with dropout reached 2.8; wrong weights gave 4 to 40."""
HIDDEN_RATIO: Final = 1.25
"""If noise could hide a loss 1.25 times as high, the weights may differ."""
DOUBTFUL: Final = 2.0
"""The weights may also differ if the losses are two standard errors higher."""
LEAST_NOISE: Final = 0.02
"""Gaps within 2% of each other agree by chance, or drift apart once the weights diverge."""
LOSS_RATIO: Final = 1.1
NORM_RATIO: Final = 1.28
"""The smallest error from wrong accumulation weights is 4/3, when it affects one micro-batch of three."""
RATE_SHARE: Final = 1e-3
"""Learning rates are usually printed with three digits."""
SAME_SHARE: Final = 2e-3
EXACT: Final = 1e-3
"""The median difference due to float noise: relative for losses, logarithmic for gradient norms. bfloat16 gives 5e-4."""
SEEN_PAIRS: Final = 14
SEEN_SHARE: Final = 0.7
"""Losses on the same samples differ by less than 0.7 times their step-to-step variation; on other samples, by 1.4 times."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What is known about a restart.

    Attributes:
        resumes_at: the step of the checkpoint it should load, or None if unknown.
        expected: whether it should load a checkpoint.
        accumulates_otherwise: whether it uses a different number of micro-batches per step.
        total_steps: the number of steps the script reports, before and after.
    """

    resumes_at: int | None
    expected: bool
    accumulates_otherwise: bool
    total_steps: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """`text` gives the reason in one line, with the numbers."""

    result: Sameness
    text: str
    difference: Difference | None = None


def judge(before: Table, after: Table, restart: Restart) -> Judgement:
    """Compare a resumed attempt with what came before it."""
    if not before or len(after) < LEAST_ROWS:
        return _unknown(f"too few steps are logged after it: {len(after)}")
    return (
        _where_it_began(before, after, restart)
        or _learning_rate(before, after)
        or _weights(before, after)
        or _agreement(before, after)
    )


def _differs(difference: Difference, text: str) -> Judgement:
    return Judgement(Sameness.DIFFERS, text, difference)


def _unknown(text: str) -> Judgement:
    return Judgement(Sameness.UNKNOWN, text)


def began_below(before: Table, after: Table, at: int) -> int | None:
    """Return the step after which an attempt began, if it is below `at` (where it should have resumed), or None otherwise.

    One logged step proves nothing, because an evaluation before training is logged as step 0. The first step must be below
    `at` by a logging interval, and by at least 2, because a checkpoint's number may be one ahead of the log.
    """
    first = sorted(after)[:2]
    if len(first) < 2:
        return None
    every = _interval(before) if len(before) > 1 else first[1] - first[0]
    if first[0] > at - max(every, 2) or first[1] > at:
        return None
    return first[0] - every if first[0] >= every else 0


def _where_it_began(before: Table, after: Table, restart: Restart) -> Judgement | None:
    first, start, every = min(before), min(after), _interval(before)
    aim = restart.resumes_at if restart.resumes_at is not None else max(before)
    is_early = start <= first + every and start <= aim / 2
    if restart.expected and is_early and aim - first >= max(3, 2 * every):
        return _differs(Difference.STEP, f"it began at step {start}, not after step {aim}")
    totals, at = restart.total_steps, restart.resumes_at
    is_beyond = at is not None and start - at > max(4 * every, 0.25 * at)
    if restart.accumulates_otherwise and (is_beyond or (totals is not None and totals[0] != totals[1])):
        return _unknown("the log's steps may count micro-batches")
    return None


def _learning_rate(before: Table, after: Table) -> Judgement | None:
    pairs, known = _pairs(before, after, "lr"), _column(before, "lr")
    if len(pairs) < LEAST_PAIRS:
        return None
    steps = sorted(known)

    def is_off(step: int, was: float, now: float) -> bool:
        # A log may print the rate before or after the scheduler's step.
        at = steps.index(step)
        moved = max(abs(known[near] - was) for near in steps[max(at - 1, 0) : at + 2])
        return abs(now - was) > RATE_SHARE * abs(was) + 1.05 * moved

    off = [is_off(*pair) for pair in pairs]
    if sum(off) < max(2, 0.3 * len(off)) or not all(off[-2:]):
        return None
    step, was, now = pairs[-1]
    return _differs(Difference.LEARNING_RATE, f"at step {step} it is {now:.4g} and was {was:.4g}")


def _weights(before: Table, after: Table) -> Judgement | None:
    """Return how the loss or the gradient norm of the first steps differs, or None if neither does.

    A lower loss may be a running mean that restarts with each attempt. A different gradient norm means that an
    accumulated loss is not divided, or is divided twice.
    """
    losses, text = _pairs(before, after, "loss"), ""
    ratio = None if _is_exact(before, after) else _ratio(losses, math.log(LOSS_RATIO))
    if ratio is not None:
        step, was, now = losses[0]
        text = f"the loss of the first steps is {ratio:.3g} times that of before: {now:.4g} for {was:.4g} at step {step}"
        if ratio > 1:
            return _differs(Difference.LOSS, text)
    norm = _ratio(_pairs(before, after, "grad_norm"), math.log(NORM_RATIO))
    if norm is not None:
        why = f"the gradient norm of the first steps is {norm:.3g} times that of before"
        return _differs(Difference.GRAD_NORM, why)
    return _unknown(text) if text else None


def _ratio(pairs: Sequence[tuple[int, float, float]], bound: float) -> float | None:
    """Return the mean ratio of the first steps to the earlier values, or None if it is within `bound` and within the noise."""
    gaps = _log_gaps(pairs)
    if len(gaps) < LEAST_LOSSES:
        return None
    noise = max(stdev(gaps), LEAST_NOISE)
    for count in (LEAST_LOSSES, len(gaps)):
        mean = fmean(gaps[:count])
        if abs(mean) > max(bound, SURE * noise / math.sqrt(count)):
            return math.exp(mean)
    return None


def _agreement(before: Table, after: Table) -> Judgement:
    """Describe how closely the values agree when none of them differs, and whether a different data order would show."""
    pairs = _pairs(before, after, "loss")
    if len(pairs) < LEAST_PAIRS:
        return _unknown(
            f"the log tells too little: losses of steps that were trained twice: {len(pairs)}, needed {LEAST_PAIRS}"
        )
    rates = _pairs(before, after, "lr")
    share = median(abs(a - b) / max(abs(b), 1e-12) for _, b, a in pairs)
    parts = ["begun again at the first step"] if min(after) <= min(before) else []
    parts += ["learning rate as before"] if len(rates) >= LEAST_PAIRS else []
    parts.append(f"losses differ by {100 * share:.2g} % (median relative difference)")
    text = f"{len(pairs)} steps trained twice: {', '.join(parts)}"
    near = share <= SAME_SHARE or _is_exact(before, after)
    if not near and _is_hidden(pairs):
        return _unknown(f"too noisy to show other weights or another order of the data; {text}")
    result = Sameness.SAME if near and rates else Sameness.SAME_WITHIN_NOISE
    return Judgement(result, text)


def _is_exact(before: Table, after: Table) -> bool:
    """Check whether the gradients are the same as before. If so, weights and samples also match, whatever the loss averages."""
    gaps = _log_gaps(_pairs(before, after, "grad_norm"))
    return len(gaps) >= LEAST_PAIRS and median(map(abs, gaps)) <= EXACT


def _is_hidden(pairs: Sequence[tuple[int, float, float]]) -> bool:
    """Check whether the losses of steps trained twice could hide different weights or a different data order."""
    if sum(b > 0 and a > 0 for _, b, a in pairs) < SEEN_PAIRS:
        return True
    gaps, levels = _log_gaps(pairs, len(pairs)), [math.log(b) for _, b, _ in pairs if b > 0]
    first = gaps[:WINDOW]
    error = max(stdev(first), LEAST_NOISE) / math.sqrt(len(first))
    if SURE * error > math.log(HIDDEN_RATIO) or fmean(first) > DOUBTFUL * error:
        return True
    return _step_noise(gaps) > SEEN_SHARE * _step_noise(levels)


def _interval(table: Table) -> int:
    """Return the typical number of steps from one measurement to the next."""
    gaps = [b - a for a, b in itertools.pairwise(sorted(table))]
    return max(int(median(gaps)), 1) if gaps else 1


def _column(table: Table, name: str) -> dict[int, float]:
    """Return one value, keyed by step, leaving out NaN and values whose square is not finite."""
    found = {step: table[step].get(name, math.nan) for step in sorted(table)}
    return {step: value for step, value in found.items() if abs(value) < 1e100}


def _pairs(before: Table, after: Table, name: str) -> list[tuple[int, float, float]]:
    """Return (step, value before, value after) for each step that has both values."""
    old, new = _column(before, name), _column(after, name)
    return [(step, old[step], new[step]) for step in sorted(old.keys() & new.keys())]


def _log_gaps(pairs: Sequence[tuple[int, float, float]], most: int = WINDOW) -> list[float]:
    """Return log(after / before) for the first steps. Logarithms are used because noise is proportional to the loss."""
    return [math.log(a) - math.log(b) for _, b, a in pairs if b > 0 and a > 0][:most]


def _step_noise(values: Sequence[float]) -> float:
    """Measure how much a value varies around its trend, by the differences between adjacent steps."""
    return stdev([b - a for a, b in itertools.pairwise(values)])
