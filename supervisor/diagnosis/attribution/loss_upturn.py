"""Where a loss began to rise before it was no number any more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

WINDOW: Final = 50
# A loss this many times the median of the steps before is on its way up: batches differ by less.
RISE: Final = 1.5


def rise_step(losses: Sequence[tuple[int, float | None]]) -> int | None:
    """The first step of the rise that ended in a loss that is no number; None where no such loss is seen.

    Args:
        losses: (step, loss) in order; None or NaN is a loss that is no number.
    """
    bad = next((at for at, (_, loss) in enumerate(losses) if loss is None or not math.isfinite(loss)), None)
    if bad is None:
        return None
    start = losses[bad][0]
    for at in range(bad - 1, 0, -1):
        step, loss = losses[at]
        before = [value for _, value in losses[max(at - WINDOW, 0) : at] if value is not None]
        if loss is None or not before or loss <= RISE * median(before):
            break
        start = step
    return start
