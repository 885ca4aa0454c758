"""Time, injected: monotonic seconds for deadlines, wall seconds for display and for joining nodes.

The wall clock may be set during a run: by NTP after a boot, by a person, or in a virtual machine that was suspended. The keeper
reads the wall clock once, at its start, and advances the time by a clock that is never set. Durations in its journal are
therefore exact and never negative. A difference is journaled as its own event, and views subtract it from displayed ages.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.run import events as ev

SET_S = 1.0
"""NTP slews less than 0.128 s and steps more (ntpd's stepping threshold). A whole second is not a rounding error."""
LATER_S = 60.0
"""Clocks of machines that share a folder mostly agree to within this. A time further ahead is from before the clock was set back."""


class Clock:
    """The machine's clocks, as the keeper reads them.

    `was_set` says whether the machine's wall clock was changed after the keeper started.
    """

    def __init__(self) -> None:
        self._origin_t = time.time() - _since_boot()
        self.was_set = False

    def mono(self) -> float:
        """Return CLOCK_MONOTONIC seconds, for all deadlines. A suspended machine's ranks do not count as silent."""
        return time.monotonic()

    def wall(self) -> float:
        """Return epoch seconds for journal stamps: read once, and advanced by CLOCK_BOOTTIME, which includes suspension."""
        return self._origin_t + _since_boot()

    def ahead_s(self) -> float:
        """Return the wall clock's lead over `wall` in seconds: 0 until it is set, negative if set back."""
        ahead_s = time.time() - self.wall()
        self.was_set = self.was_set or abs(ahead_s) >= SET_S
        return ahead_s


class ClockWatch:
    """Journals when the machine's clock is set. Used by the keeper's only thread."""

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
    """Convert a wall time from another process on this machine to the keeper's clock.

    `t_mono` is CLOCK_MONOTONIC at the same moment, if known. It is right even if the wall clock was set
    in between. If the clock was never set, both must agree; if not, the time comes from another machine or
    namespace, and `t_mono` is ignored.
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
