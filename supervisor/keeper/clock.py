"""Time, injected: monotonic seconds for deadlines, wall seconds for display and for joining nodes."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the keeper knows of time."""

    def mono(self) -> float:
        """Monotonic seconds: all deadlines."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch: journal stamps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def mono(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds of CLOCK_REALTIME."""
        return time.time()
