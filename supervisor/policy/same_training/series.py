"""Numbers of what was logged by step: levels, noise, trends, correlations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Final, TypeAlias

Row: TypeAlias = Mapping[str, float]
Table: TypeAlias = Mapping[int, Row]
"""Steps and what was logged of them, under the names of the series `metrics`."""
Series: TypeAlias = Mapping[int, float]

LEAST_PAIRS: Final = 3
LR_SHARE: Final = 1e-3
"""A learning rate is printed with three digits mostly."""
SURE: Final = 4.5
"""Standard errors. Losses have heavier tails than a normal distribution; 4.5 of it come by chance 7 times in a million."""
BEYOND: Final = 1e100
NEAR: Final = 12
"""Points that a schedule or a level is continued from."""


def column_of(table: Table, name: str) -> dict[int, float]:
    """A value by step; what is no number, or beyond any that a training has, is left out."""
    found = {}
    for step in sorted(table):
        value = table[step].get(name)
        if (
            value is not None and abs(value) < BEYOND
        ):  # so that squares and ratios of what is left stay finite
            found[step] = value if abs(value) > 1 / BEYOND else 0.0
    return found


def first_of(column: Series, count: int) -> dict[int, float]:
    """The first so many points."""
    return {step: column[step] for step in sorted(column)[:count]}


def last_of(column: Series, count: int) -> dict[int, float]:
    """The last so many points."""
    return {step: column[step] for step in sorted(column)[-count:]}


def gaps_between(steps: Sequence[int]) -> list[int]:
    """From each step to the next."""
    return [b - a for a, b in itertools.pairwise(steps)]


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation by the median deviation, which a few odd values leave alone."""
    if len(values) < 2:
        return 0.0
    middle = median(values)
    return 1.4826 * median(abs(v - middle) for v in values)


def deviation_of(values: Sequence[float]) -> float:
    """Standard deviation."""
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))


def error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median."""
    return (
        1.2533 * max(spread_of(values), 0.5 * deviation_of(values)) / math.sqrt(len(values))
        if len(values) > 1
        else math.inf
    )


def noise_of(column: Series) -> float | None:
    """Standard deviation of one step's loss about its trend, from the differences of adjacent steps."""
    values = [column[step] for step in sorted(column)]
    gaps = [b - a for a, b in itertools.pairwise(values)]
    if len(gaps) < NEAR // 2:
        return None
    return max(spread_of(gaps), 0.7 * deviation_of(gaps)) / math.sqrt(2)


def slope_of(column: Series) -> float | None:
    """The slope of the line through the points; None where they are too few."""
    if len(column) < LEAST_PAIRS:
        return None
    return line_through(column, at=max(column))[0]


def slope_between(a: Sequence[float], b: Sequence[float]) -> float:
    """The slope of b over a, by least squares; 0 where a does not vary."""
    middle, mean = fmean(a), fmean(b)
    spread = sum((x - middle) ** 2 for x in a)
    return (
        sum((x - middle) * (y - mean) for x, y in zip(a, b, strict=True)) / spread if spread > 1e-12 else 0.0
    )


def line_through(column: Series, *, at: float) -> tuple[float, float, float]:
    """Slope, value at `at` and its standard error, of the least squares through the points."""
    count = len(column)
    middle = fmean(column)
    mean = fmean(column.values())
    spread = sum((s - middle) ** 2 for s in column)
    slope = slope_between(list(column), list(column.values()))
    rest = sum((v - mean - slope * (s - middle)) ** 2 for s, v in column.items())
    error = math.sqrt(rest / max(count - 2, 1)) * math.sqrt(
        1 / count + ((at - middle) ** 2 / spread if spread else 0.0)
    )
    return slope, mean + slope * (at - middle), error


def without_trend(steps: Sequence[float], values: Sequence[float]) -> list[float]:
    """What is left of the values beside the parabola through them: a loss that falls fast is no noise."""
    low, high = min(steps), max(steps)
    x = [2 * (s - low) / (high - low) - 1 if high > low else 0.0 for s in steps]
    rows: list[list[float]] = [[1.0] * len(x), x, [v * v for v in x]]
    basis: list[list[float]] = []
    rest = list(values)
    for row in rows:  # Gram-Schmidt
        one = list(row)
        for other in basis:
            dot = sum(a * b for a, b in zip(one, other, strict=True))
            one = [a - dot * b for a, b in zip(one, other, strict=True)]
        size = math.sqrt(sum(a * a for a in one))
        if size < 1e-9:
            continue
        one = [a / size for a in one]
        basis.append(one)
        dot = sum(a * b for a, b in zip(rest, one, strict=True))
        rest = [a - dot * b for a, b in zip(rest, one, strict=True)]
    return rest


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Correlation of two rows without trend; None where one does not vary."""
    power = math.sqrt(sum(v * v for v in a) * sum(v * v for v in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / power if power > 1e-18 else None


def quantum_of(values: Iterable[float]) -> float:
    """What the printing of these numbers rounds away: one of their last digit, of the one with the most digits."""
    least = math.inf
    for value in values:
        if value:
            mantissa, _, exponent = f"{value:.12e}".partition("e")
            digits = len(mantissa.rstrip("0").lstrip("-")) - 2
            least = min(least, 10.0 ** (int(exponent) - max(digits, 0)))
    return 0.0 if least is math.inf else least
