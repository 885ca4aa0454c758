"""What is compared: the two tables of a restart, and what was found of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import median
from typing import Final

from supervisor.policy.same_training.series import LEAST_PAIRS, NEAR, Table, column_of, gaps_between
from supervisor.run.records import Difference

EXACT: Final = 1e-3
"""So near are values of the same weights and samples where nothing is drawn at random (logarithm of a ratio); bfloat16 gives 5e-4."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What is known of a restart. Pairs are before and after.

    Attributes:
        resumes_at: steps done in the checkpoint that it should load; None: not known.
        expected: whether it should load one at all.
        accumulation: micro-batches of a rank in one step.
        world: ranks.
        micro: samples of a rank's micro-batch.
        total_steps: how many the script says there are.
    """

    resumes_at: int | None = None
    expected: bool = True
    accumulation: tuple[int, int] | None = None
    world: tuple[int, int] | None = None
    micro: tuple[int, int] | None = None
    total_steps: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What one test found against the sameness."""

    difference: Difference | None
    text: str
    numbers: tuple[tuple[str, float], ...]
    certain: bool = False


class Case:
    """Both tables by name, and what several tests ask of them.

    Attributes:
        start: first step logged after the resume; `at`: the step that it resumed from.
        every: steps between two logged ones.
    """

    def __init__(self, before: Table, after: Table, restart: Restart) -> None:
        self.before, self.after, self.restart = before, after, restart
        self.begin, self.last, self.start = min(before), max(before), min(after)
        steps = sorted(before)
        self.every = max(int(median(gaps_between(steps))), 1) if len(steps) > 1 else 1
        self.at = self.start - self.every
        known = restart.resumes_at
        if known is not None and self.start - 2 * self.every <= known < self.start:
            self.at = known
        self.twice = sorted(set(before) & set(after))
        self.new = [step for step in after if step > self.last]

    def series(self, name: str) -> tuple[dict[int, float], dict[int, float]]:
        """A value before and after; what is no number is left out."""
        return column_of(self.before, name), column_of(self.after, name)

    def pairs(self, name: str) -> list[tuple[int, float, float]]:
        """Step, value before, value after, of the steps that have both."""
        old, new = self.series(name)
        return [(step, old[step], new[step]) for step in self.twice if step in old and step in new]

    def log_gaps(self, name: str) -> list[float]:
        """Logarithms of after / before of the steps trained twice: noise grows with a loss, so shares of it compare."""
        return [math.log(a) - math.log(b) for _, b, a in self.pairs(name) if b > 0 and a > 0]

    def log_gaps_of_both(self) -> list[tuple[float, float]]:
        """The same of loss and gradient norm, of the steps that have both."""
        norms = {step: math.log(a) - math.log(b) for step, b, a in self.pairs("grad_norm") if b > 0 and a > 0}
        return [
            (math.log(a) - math.log(b), norms[step])
            for step, b, a in self.pairs("loss")
            if b > 0 and a > 0 and step in norms
        ]

    def starts_exact(self) -> bool:
        """Whether loss and gradient norm of the very first step are those of before: then its samples are, whatever becomes of the next ones."""
        both = self.log_gaps_of_both()
        return len(both) > 0 and max(map(abs, both[0])) <= EXACT and self.pairs("loss")[0][0] == self.start

    def is_exact(self) -> bool:
        """Whether the gradients of all ranks are those of before: then weights, samples and optimizer are too, whatever the loss is a mean of."""
        gaps = self.log_gaps("grad_norm")[: 2 * NEAR]
        return len(gaps) >= LEAST_PAIRS and median(map(abs, gaps)) <= EXACT

    def half_changes(self) -> list[float]:
        """By what a step counts more or less samples where a part of the planned change was not made."""
        pairs = (self.restart.micro, self.restart.accumulation, self.restart.world)
        ratios = [pair[1] / pair[0] for pair in pairs if pair is not None and pair[0] != pair[1]]
        return [*ratios, *(math.prod(two) for two in itertools.combinations(ratios, 2))]

    def factors(self) -> dict[str, float]:
        """By which a wrong weight of the accumulation would be off, by what it would come of."""
        if self.restart.accumulation is None:
            return {}
        old, new = self.restart.accumulation
        worlds = self.restart.world or (1, 1)
        named = {
            f"accumulation {old} → {new}": new / old,
            f"accumulation {new}": float(new),
            f"ranks {worlds[0]} → {worlds[1]}": worlds[1] / worlds[0],
            "accumulation × ranks": new * worlds[1] / (old * worlds[0]),
        }
        both = {name: value for name, value in named.items() if abs(value - 1) > 0.01}
        return both | {f"1 / ({name})": 1 / value for name, value in both.items()}
