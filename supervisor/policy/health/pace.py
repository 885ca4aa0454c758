"""Pace: how long a thing of this run usually takes, as a high percentile of the newest durations.

Only so many are kept, so that the pace follows a run that slows down (longer sequences).
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from enum import StrEnum

KEPT = 1024
MIN_GAPS = 5
"""Fewer gaps say little: the first two or three are warm-up."""
MIN_LINES = 20
"""Lines come in bursts, at the start above all: a log has a pace only after this many gaps of a second or more."""


class Stage(StrEnum):
    """What a pace is learned of: two kinds of gaps between signs of life, and the lengths of whole phases."""

    STEP = "step"  # from one step to the next
    LOG = "log"  # from one line of any rank to the next (in whole seconds), where no steps can be read
    START = "start"  # from the launch to the first step
    COMPILE = "compile"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"


class Pace:
    """The 99th percentile of durations in seconds, from a stream of them."""

    def __init__(self, min_count: int = MIN_GAPS) -> None:
        self._min_count = min_count
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, duration_s: float) -> None:
        """Count one duration; what is negative or not finite is no duration and is passed over."""
        if not math.isfinite(duration_s) or duration_s < 0:
            return
        self._newest.append(duration_s)
        insort(self._sorted, duration_s)
        if len(self._newest) > KEPT:
            self._sorted.remove(self._newest.popleft())

    @property
    def known(self) -> bool:
        """Whether enough was seen to speak of a pace."""
        return len(self._newest) >= self._min_count

    def quantile_s(self, q: float = 0.99) -> float | None:
        """The q-quantile; None while too little is known. With fewer than 100 durations the 99th percentile is the longest of them."""
        return self._sorted[math.ceil(q * len(self._sorted) - 1e-9) - 1] if self.known else None


class Paces:
    """One pace a stage, over all attempts. Phases come seldom, so one earlier length of a phase is a pace already."""

    def __init__(self) -> None:
        self._paces = {
            stage: Pace({Stage.STEP: MIN_GAPS, Stage.LOG: MIN_LINES}.get(stage, 1)) for stage in Stage
        }
        self._forgiven: dict[Stage, float] = {}
        self._returned_s = 0.0

    def add(self, stage: Stage, duration_s: float) -> None:
        """Count one duration of a stage."""
        self._paces[stage].add(duration_s)

    def forgive(self, stage: Stage, silent_s: float) -> None:
        """A silence of this stage ended by itself: it is no news when one as long comes again."""
        self._forgiven[stage] = max(self.forgiven_s(stage), silent_s)

    def forgiven_s(self, stage: Stage) -> float:
        """The longest silence of the stage that ended by itself after it had been flagged; 0 if none was."""
        return self._forgiven.get(stage, 0.0)

    def returned(self, silent_s: float) -> None:
        """The run came back from a silence of this length, flagged or not."""
        self._returned_s = max(self._returned_s, silent_s)

    @property
    def returned_s(self) -> float:
        """The longest silence that the run came back from, in any attempt; 0 before the first."""
        return self._returned_s

    def p99_s(self, stage: Stage) -> float | None:
        """The stage's 99th percentile; None while unknown."""
        return self._paces[stage].quantile_s()
