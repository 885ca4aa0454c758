"""Injectable time: monotonic seconds for deadlines, wall-clock seconds for display and for aligning nodes.

The wall clock can be set during a run: by NTP after boot, by a user, or after a virtual machine was suspended. The keeper
reads it once at startup and then advances it with a clock that is never set, so durations in the journal are exact and never
negative. A difference is journaled as a separate event, and views subtract it from the ages they display.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.run import events as ev

SET_S = 1.0
"""NTP slews offsets below 0.128 s and steps larger ones (ntpd's step threshold). A full second is never a rounding error."""
LATER_S = 60.0
"""Machines that share a folder usually agree on the time within this. A time further ahead predates a clock being set back."""


class Clock:
    """The machine's clocks, as the keeper reads them.

    `was_set` is true if the machine's wall clock was changed after the keeper started.
    """

    def __init__(self) -> None:
        self._origin_t = time.time() - _since_boot()
        self.was_set = False

    def mono(self) -> float:
        """Return CLOCK_MONOTONIC seconds, used for all deadlines. Suspending the machine does not make ranks look silent."""
        return time.monotonic()

    def wall(self) -> float:
        """Return epoch seconds for journal timestamps: read once, then advanced by CLOCK_BOOTTIME, which includes suspension."""
        return self._origin_t + _since_boot()

    def ahead_s(self) -> float:
        """Return how far the wall clock is ahead of `wall`, in seconds: 0 until it is set, negative if it was set back."""
        ahead_s = time.time() - self.wall()
        self.was_set = self.was_set or abs(ahead_s) >= SET_S
        return ahead_s


class ClockWatch:
    """Journals changes to the machine's clock. Used only by the keeper's single thread."""

    def __init__(self, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._clock, self._emit = clock, emit
        self._reported_s = 0.0

    def look(self) -> None:
        """Compare the clocks and journal any new difference."""
        ahead_s = self._clock.ahead_s()
        if abs(ahead_s - self._reported_s) >= SET_S:
            self._reported_s = ahead_s
            self._emit(ev.ClockSet(t=self._clock.wall(), ahead_s=round(ahead_s, 3)))


def of_others(t: float, clock: Clock, t_mono: float | None = None) -> float:
    """Convert another process's wall time on this machine to the keeper's clock.

    `t_mono`, if known, is CLOCK_MONOTONIC at the same moment, which is correct even if the wall clock was set in
    between. If the clock was never set, the two must agree; if they don't, the time comes from another machine
    or namespace and `t_mono` is ignored.
    """
    ahead_s, wall = clock.ahead_s(), clock.wall()
    by_wall = t - ahead_s
    if t_mono is None:
        return by_wall
    by_mono = wall - (clock.mono() - t_mono)
    trusted = clock.was_set or by_wall > wall + LATER_S or abs(by_mono - by_wall) < 5 * SET_S
    return by_mono if trusted and by_mono <= wall + SET_S else by_wall


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
