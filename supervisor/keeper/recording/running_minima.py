"""The losses that were the least of an attempt when they came, until the journal has them (pure)."""

from __future__ import annotations

import math
from typing import TypeAlias

Minimum: TypeAlias = tuple[int | None, float]
"""A step (None before any was named) and its loss."""

# A loss that falls with every step makes a low of each; a journal's line stays below 1 KiB with so many.
MAX_MINIMA = 32


class RunningMinima:
    """Every new low of one attempt. Where steps are many a second the journal's newest value misses them.

    All of them and not the least alone: a later attempt may take some of these steps away, and what is left has a
    least of its own.
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._step: int | None = None
        self._new: list[Minimum] = []

    def add(self, step: float | None, loss: float | None) -> None:
        """A sample; what is not finite tells nothing. A loss without a step belongs to the newest one."""
        at = self._step
        if step is not None and math.isfinite(step):
            at = int(step)
            self._step = at if self._step is None else max(self._step, at)
        if loss is None or not loss < self._least or not math.isfinite(loss):
            return
        self._least = loss
        self._new.append((at, loss))
        if len(self._new) > MAX_MINIMA:
            self._new = [*self._new[:-1][::2], self._new[-1]]

    def take(self) -> tuple[Minimum, ...]:
        """Those since the last call, the least last; of too many every second one is left out, never the last."""
        new, self._new = tuple(self._new), []
        return new
