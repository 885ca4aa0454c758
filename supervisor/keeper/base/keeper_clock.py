"""Time, injected: monotonic seconds for deadlines, wall seconds for display and for joining nodes.

A wall clock may be set while a run lives: by NTP after a boot, by a person, in a virtual machine that was suspended. The keeper
reads it once, at its start, and carries it on by a clock that nobody sets, so that no duration of its journal is longer or
shorter than it was, or negative. A difference that arises is a fact of its own, which those who show ages take off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from supervisor.run import events as ev

SET_S = 1.0
"""NTP slews what is less than 0.128 s and steps what is more (ntpd's stepping threshold); a second is no rounding."""
LATER_S = 60.0
"""Clocks of machines that share a folder mostly agree to within this: a time further ahead was written before the clock was set back."""


class Clock(Protocol):
    """What the keeper knows of time."""

    @property
    def was_set(self) -> bool:
        """Whether somebody has set the machine's wall clock since the keeper's start."""
        ...

    def mono(self) -> float:
        """Monotonic seconds: all deadlines."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, as of the keeper's start and carried on: journal stamps."""
        ...

    def ahead_s(self) -> float:
        """By how much the machine's wall clock is ahead of `wall`: 0 until somebody sets it."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._origin_t = time.time() - _since_boot()
        self.was_set = False

    def mono(self) -> float:
        """Seconds of CLOCK_MONOTONIC: a suspended machine's ranks are not silent."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, carried on by CLOCK_BOOTTIME: the time of a suspension counts."""
        return self._origin_t + _since_boot()

    def ahead_s(self) -> float:
        """Seconds by which CLOCK_REALTIME has been set forward since; negative: back."""
        ahead_s = time.time() - self.wall()
        self.was_set = self.was_set or abs(ahead_s) >= SET_S
        return ahead_s


class ClockWatch:
    """Journals when the machine's clock is set. Used by the keeper's one thread."""

    def __init__(self, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._clock, self._emit = clock, emit
        self._reported_s = 0.0

    def look(self) -> None:
        """Compare the clocks."""
        ahead_s = self._clock.ahead_s()
        if abs(ahead_s - self._reported_s) >= SET_S:
            self._reported_s = ahead_s
            self._emit(ev.ClockSet(t=self._clock.wall(), ahead_s=round(ahead_s, 3)))


def of_others(t: float, clock: Clock, t_mono: float | None = None) -> float:
    """A wall time that another process of this machine wrote, as the keeper counts it.

    `t_mono`: its CLOCK_MONOTONIC at the same moment, where it wrote that too; it holds where the wall clock was set in
    between, also where it was set back since. Without such a setting both must agree, else it is of another machine or
    namespace and says nothing here.
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
