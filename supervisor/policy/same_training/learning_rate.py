"""Whether the learning rate continues as its schedule did: exact but for printed digits, so that a wrong one can be named."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from supervisor.policy.same_training.case import Case, Found
from supervisor.policy.same_training.series import (
    LEAST_PAIRS,
    LR_SHARE,
    NEAR,
    Series,
    first_of,
    quantum_of,
    slope_of,
)
from supervisor.run.records import Difference

LR_SLOPE_SHARE: Final = 0.35
"""Beyond the known schedule its slope may change by so much within the steps that are looked at."""
FACTOR_SPREAD: Final = 0.13
"""A speed is named by a factor of the plan when it lies within 13 % of it."""


def learning_rate(case: Case) -> Found | None:
    """The first thing that is wrong with it."""
    old, new = case.series("lr")
    if len(old) < LEAST_PAIRS or len(new) < LEAST_PAIRS:
        return None
    digits = max(quantum_of(old.values()), quantum_of(new.values()))
    # What is known of the schedule, and its continuation: of that only as much as it was known.
    known = Schedule(old, case.every, digits)
    twice = {step: value for step, value in new.items() if known.has(step)}
    wrong = [step for step, value in twice.items() if not known.matches(step, value)]
    if len(twice) >= LEAST_PAIRS:
        late = sorted(twice)[-2:]
        if len(wrong) < max(2, 0.3 * len(twice)) or not set(late) <= set(wrong):
            return None
        return _named_rate(case, known, new, twice)
    return _rate_beyond(case, known, new)


def _named_rate(case: Case, known: Schedule, new: Series, twice: Series) -> Found:
    """Which wrong schedule it is, of one that is wrong."""
    step = max(twice)
    numbers = (("step", step), ("lr_before", known.at(step)), ("lr_after", new[step]))
    text = f"at step {step} it is {new[step]:.4g} and was {known.at(step):.4g}"
    at = case.at
    if _share_matched(known, new, lambda s: s - at + case.begin - case.every) >= 0.8:
        return Found(
            Difference.LR_RESTARTED, f"{text}: the schedule of the first steps again", numbers, certain=True
        )
    if case.restart.accumulation is not None and _is_ahead(known, twice, at):
        return Found(
            Difference.LR_COUNTED_TWICE, f"{text}: the schedule moves on too fast", numbers, certain=True
        )
    for times in (2.0, 4.0, 8.0, 3.0):
        if _share_matched(known, new, lambda s, k=times: at + k * (s - at)) >= 0.8:  # type: ignore[misc]
            return Found(
                Difference.LR_COUNTED_TWICE,
                f"{text}: it moves {times:g} times as fast",
                numbers,
                certain=True,
            )
    return Found(Difference.LEARNING_RATE, text, numbers, certain=True)


def _is_ahead(known: Schedule, twice: Series, at: float) -> bool:
    """Whether the schedule has come further at each step than it had, from where it was or from the first step on."""
    steps = [step for step in sorted(twice) if not known.matches(step, twice[step])]
    began = known.at(at)
    ahead = [
        (twice[step] - began) * (known.at(step) - began) > 0
        and abs(twice[step] - began) > abs(known.at(step) - began)
        for step in steps
    ]
    return len(ahead) >= 2 and sum(ahead) >= 0.8 * len(ahead)


def _share_matched(known: Schedule, new: Series, place: Callable[[float], float]) -> float:
    """How many learning rates are those of other steps."""
    asked = [(place(step), value) for step, value in new.items() if known.has(place(step))]
    return (
        sum(known.matches(step, value) for step, value in asked) / len(asked)
        if len(asked) >= LEAST_PAIRS
        else 0.0
    )


def _rate_beyond(case: Case, known: Schedule, new: Series) -> Found | None:
    """Where no step was trained twice: only what is named may be held against it, because any schedule may bend here."""
    ahead = first_of(new, NEAR // 2 + 2)
    going_on = known.continued()
    if going_on is None:
        return None
    last = going_on.last
    edge, step = known.at(last), max(ahead)
    expected = going_on.at(step)
    numbers = (("step", step), ("lr_expected", expected), ("lr_after", new[step]))
    text = f"at step {step} it is {new[step]:.4g} and would be {expected:.4g} going on as before"
    slack = known.digits + LR_SHARE * abs(edge) + 2 * abs(going_on.at(last + case.every) - edge)
    off = [
        s
        for s, v in ahead.items()
        if abs(v - going_on.at(s)) > slack + LR_SLOPE_SHARE * abs(going_on.at(s) - edge)
    ]
    if len(off) < max(2, 0.5 * len(ahead)):
        return None
    again = _share_matched(known, ahead, lambda s: s - case.at + case.begin - case.every)
    if again >= 0.8 and abs(new[min(ahead)] - edge) > 0.05 * abs(edge) + slack:
        return Found(
            Difference.LR_RESTARTED, f"{text}: the schedule of the first steps again", numbers, certain=True
        )
    pair = case.restart.accumulation
    if pair is not None:
        for times in (pair[1] / pair[0], float(pair[1])):
            moved = going_on.at(last + times * (step - last)) - edge
            if times > 1.3 and moved and abs((new[step] - edge) / moved - 1) < FACTOR_SPREAD:
                return Found(
                    Difference.LR_COUNTED_TWICE,
                    f"{text}: it moves {times:g} times as fast",
                    numbers,
                    certain=True,
                )
    change = going_on.at(last + case.every) - edge
    jump = new[min(ahead)] - going_on.at(min(ahead))
    if change and jump * change > 0 and abs(jump) > 15 * abs(change) + 0.05 * abs(edge):
        return Found(Difference.LR_COUNTED_TWICE, f"{text}: the schedule is ahead", numbers, certain=True)
    return None


@dataclass(frozen=True, slots=True)
class Parabola:
    """A schedule's continuation. `last`: the last known step; `terms`: of a value, by distance from that step."""

    last: int
    terms: tuple[float, float, float]

    def at(self, step: float) -> float:
        """The value there."""
        x, (a, b, c) = step - self.last, self.terms
        return a + b * x + c * x * x


class Schedule:
    """A schedule as it was logged. `digits`: what its printing rounds away."""

    def __init__(self, points: Series, every: int, digits: float) -> None:
        self._points, self._every, self.digits = points, every, digits
        self._steps = sorted(points)

    def has(self, step: float) -> bool:
        """Whether the step lies between two logged ones that stand together."""
        return self._around(step) is not None

    def at(self, step: float) -> float:
        """The value, between two logged ones on the line through them; beyond the ends theirs."""
        around = self._around(step)
        if around is None:
            return self._points[self._steps[0] if step < self._steps[0] else self._steps[-1]]
        a, b = around
        if a == b:
            return self._points[a]
        return self._points[a] + (self._points[b] - self._points[a]) * (step - a) / (b - a)

    def matches(self, step: float, value: float) -> bool:
        """Whether it may be that step's: within the printed digits and the change of one step, which a log may print before or after."""
        here = self.at(step)
        moved = max(abs(self.at(step + 1) - here), abs(here - self.at(step - 1)))
        return abs(value - here) <= self.digits + LR_SHARE * abs(here) + 1.05 * moved

    def continued(self) -> Parabola | None:
        """The parabola through its end; where it bends sharply there, the line."""
        steps = self._steps[-NEAR:]
        if len(steps) < LEAST_PAIRS:
            return None
        for tail in (steps, steps[-4:]):
            first, middle, last = tail[0], tail[len(tail) // 2], tail[-1]
            if middle in {first, last}:
                continue
            a, x, y = self._points[last], float(first - last), float(middle - last)
            p, q = (self._points[first] - a) / x, (self._points[middle] - a) / y
            bend = (p - q) / (x - y)
            found = Parabola(last, (a, q - bend * y, bend))
            slack = 2 * self.digits + LR_SHARE * abs(a)
            if len(tail) >= NEAR // 2 and all(abs(found.at(s) - self._points[s]) <= slack for s in tail):
                return found
        slope = slope_of({step: self._points[step] for step in steps[-4:]})
        return Parabola(steps[-1], (self._points[steps[-1]], slope, 0.0)) if slope is not None else None

    def _around(self, step: float) -> tuple[int, int] | None:
        place = bisect_left(self._steps, step)
        if place < len(self._steps) and self._steps[place] == step:
            return self._steps[place], self._steps[place]
        if not 0 < place < len(self._steps):
            return None
        a, b = self._steps[place - 1], self._steps[place]
        return (a, b) if b - a <= 2 * self._every else None
