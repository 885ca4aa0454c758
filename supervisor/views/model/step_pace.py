"""The duration of a step, derived from when steps were logged if the script does not print it. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from supervisor.views.model.thinned_series import Point, Track, median, single

# Lines are read in batches, so lines closer together than this do not show a step's duration.
APART_S = 0.25
# Times in lines mostly have whole seconds. Over ten seconds, rounding is an error of a tenth.
APART_BY_CLOCK_S = 10.0
# For times with fractions of a second, use a shorter gap, so that not every gap includes an evaluation.
APART_BY_FINE_CLOCK_S = 1.0
# The number of gaps in the median. One evaluation or checkpoint among them must not distort the median.
GAPS = 60
# Use the median of this many epochs. In a file with several trainings, points that separate them may be lost.
NEWEST_EPOCHS = 5
# A logged step time that differs by more than this from the time between steps is not the run's pace.
PACE_RATIO = 1.25
# Lines that arrive this soon after the first read of a pipe may have been written earlier.
BURST_S = 3.0
# The pace is available after this many gaps between steps; after two if a step time is shorter by the second
# factor, like that of a progress bar that jumped to the step at which a job resumed.
LEAST_GAPS = 5
FAR = 10.0
# With fewer epochs, there is no epoch time.
LEAST_EPOCHS = 2
# Logged step or epoch times are times since the start if they never fall and rise to this many times the first.
RISEN = 1.5
LEAST_STEPS = 9


def job_pace(
    reported_s: float | None, logged_s: Iterable[float], pace_s: float | None, gaps: int
) -> tuple[float | None, bool]:
    """Return the job's seconds per step, and whether they were derived from when steps were logged.

    They are derived if the latest attempt logs no step time or if the logged time contradicts the steps, for
    example because it excludes the time a rank spends waiting or covers ten steps.

    Args:
        reported_s: the latest logged step time.
        logged_s: the latest logged step times, about as many as there are gaps, but at least `LEAST_STEPS`.
        pace_s: seconds per step, computed from when steps were logged.
        gaps: the number of gaps between steps that `pace_s` is based on.
    """
    logged = list(logged_s)
    usual_s = median(logged)
    if reported_s is None or is_since_start(logged, LEAST_STEPS):
        return pace_s, pace_s is not None
    if usual_s is not None and pace_s is not None:
        is_known = gaps >= LEAST_GAPS or (gaps > 1 and usual_s * FAR < pace_s)
        if is_known and not usual_s / PACE_RATIO <= pace_s <= usual_s * PACE_RATIO:
            return pace_s, True
    return reported_s, False


def epoch_times(printed: Track) -> Track:
    """Return each epoch's printed duration, or an empty track if the times appear to be measured from the start."""
    return () if is_since_start([point.mean for point in printed], LEAST_EPOCHS + 1) else printed


def is_since_start(values: Sequence[float], least: int) -> bool:
    """Check whether the times in a log are measured from its start. Return False for fewer than `least` values."""
    if len(values) < least or values[-1] < RISEN * values[0]:
        return False
    return all(b >= a for a, b in pairwise(values))


def epochs_apart(logged: Track) -> Track:
    """Return the seconds between epochs in the latest training run, measured from each epoch's first log line."""
    firsts: list[Point] = []
    for point in logged:
        if point.epoch is None or point.time is None:
            continue
        if firsts and (_epoch(point) < _epoch(firsts[-1]) or point.time < (firsts[-1].time or 0.0)):
            firsts = []  # another training
        if not firsts or _epoch(point) > _epoch(firsts[-1]):
            firsts.append(point)
    found: list[Point] = []
    since = firsts[0] if firsts else None
    for point in firsts[1:]:
        assert since is not None
        apart_s = (point.time or 0.0) - (since.time or 0.0)
        if apart_s >= _apart_s(point.time or 0.0, since.time or 0.0):
            gap_s = apart_s / (_epoch(point) - _epoch(since))
            found.append(since._replace(low=gap_s, mean=gap_s, high=gap_s))
            since = point
    return tuple(found)


def _epoch(point: Point) -> int:
    return math.floor(point.epoch or 0.0)


class Pace:
    """The gaps between the latest attempt's steps, added one at a time."""

    def __init__(self) -> None:
        self._gaps: deque[Point] = deque(maxlen=GAPS)
        self._from: tuple[float, float] | None = None  # the start of the newest gap
        self._at: tuple[float, float] | None = None
        self._of: tuple[int, bool] = (0, False)

    def add(self, t: float, step: float, attempt: int, *, by_clock: bool = False) -> None:
        """Add a step logged at `t`, in wall-clock seconds. If `by_clock` is true, `t` is the timestamp in the line."""
        if not (math.isfinite(t) and math.isfinite(step)):
            return
        if (attempt, by_clock) != self._of:
            self._of = (attempt, by_clock)
            self._gaps.clear()
            self.forget()
        if self._at is None or step < self._at[1] or t < self._at[0]:
            self._from, self._at = None, (t, step)
            return
        apart_s = APART_S
        if by_clock:
            apart_s = _apart_s(t, self._at[0])
        if t == self._at[0]:  # read at once, so only the last step is that recent
            if self._from is not None:
                self._gaps.pop()
        elif step > self._at[1] and t - self._at[0] >= apart_s:
            self._from = self._at
        else:
            return
        self._at = (t, step)
        if self._from is not None:
            gap_s = (t - self._from[0]) / (step - self._from[1])
            self._gaps.append(single(t, step, gap_s, attempt))

    def forget(self) -> None:
        """Start over. Called when the next step does not directly follow the last one."""
        self._from = self._at = None

    @property
    def attempt(self) -> int:
        """The attempt that made these steps, or 0 before the first step."""
        return self._of[0]

    def seconds(self) -> float | None:
        """Return seconds per step, the median of the latest gaps, or None if there are no gaps."""
        return median(gap.mean for gap in self._gaps)

    def track(self) -> Track:
        """Return the gaps, in seconds per step."""
        return tuple(self._gaps)


def _apart_s(t: float, before: float) -> float:
    """Return the smallest difference at which two timestamps are considered distinct."""
    return APART_BY_FINE_CLOCK_S if t % 1 and before % 1 else APART_BY_CLOCK_S
