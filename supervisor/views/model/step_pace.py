"""How long a step takes, from when steps were logged (pure): for scripts that print a step and no time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.views.model.thinned_series import Point, Track, median, single

if TYPE_CHECKING:
    from supervisor.views.model.snapshot import Rank

# Lines are read in batches and looked for at times: what is closer together says nothing of a step's length.
APART_S = 0.25
# Clocks that lines bear are mostly whole seconds; over ten of them that is an error of a tenth.
APART_BY_CLOCK_S = 10.0
# Where both bear a fraction of a second, an evaluation between two steps must not be part of every gap.
APART_BY_FINE_CLOCK_S = 1.0
# Fewer gaps between the lines of a rank say nothing of how often it logs a step.
LEAST_LOGGED = 5
# A rank is silent that logged nothing for so many of its usual gaps, and no less than this, and is as many steps behind.
SILENT_GAPS = 3
SILENT_S = 5.0
# Gaps that the median is taken over: one evaluation or checkpoint among them must not swing the figure.
GAPS = 60
# Those that are kept where the counter starts again.
KEPT_GAPS = 2
# The median is taken over so many: of a file with several trainings not all points are kept that tell them apart.
NEWEST_EPOCHS = 5
# A logged step time that differs by more than this from the time between the steps is not the run's pace.
PACE_RATIO = 1.25
# What comes within so long of the moment when a pipe is first read may be what its writer had written before.
BURST_S = 3.0
# Over so many gaps between steps that is known; over two, where a step time is shorter by the second factor, as that of a bar
# that was moved to the step at which a job resumed.
LEAST_GAPS = 5
FAR = 10.0
# Fewer epochs give no time of an epoch.
LEAST_EPOCHS = 2
# What a log calls the time of a step or an epoch is that since the start where it never falls, and rises to so many times the first.
RISEN = 1.5
LEAST_STEPS = 9


def job_pace(
    reported_s: float | None, logged_s: Iterable[float], pace_s: float | None, gaps: int
) -> tuple[float | None, bool]:
    """Seconds from one step of the job to the next, and whether that is derived from when steps were logged.

    Derived where the newest attempt's log gives no step time, or one that the steps do not bear out: a rank's own time without its
    waits, or that of ten steps.

    Args:
        reported_s: the newest step time that was logged.
        logged_s: the newest ones, about as many as there are gaps, but at least `LEAST_STEPS`.
        pace_s: by when steps were logged.
        gaps: how many gaps between steps that is taken from.
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
    """How long each epoch took, by a log that prints a time with each; nothing where that seems to be the time since the start."""
    return () if is_since_start([point.mean for point in printed], LEAST_EPOCHS + 1) else printed


def is_since_start(values: Sequence[float], least: int) -> bool:
    """Whether times that a log prints are those since its start; unknown of fewer than `least`."""
    if len(values) < least or values[-1] < RISEN * values[0]:
        return False
    return all(b >= a for a, b in pairwise(values))


def epochs_apart(logged: Track) -> Track:
    """Seconds from one epoch to the next of the newest training, by when their first known lines were written."""
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
    """Gaps between the steps of the newest attempt, added one after the other."""

    def __init__(self) -> None:
        self._gaps: deque[Point] = deque(maxlen=GAPS)
        self._from: tuple[float, float] | None = None  # where the newest gap began
        self._at: tuple[float, float] | None = None
        self._of: tuple[int, bool] = (0, False)
        self._seen: tuple[Track, float | None] | None = None

    def add(self, t: float, step: float, attempt: int, *, by_clock: bool = False) -> None:
        """A step was logged at `t`, wall seconds. `by_clock`: by the line's own time stamp."""
        if not (math.isfinite(t) and math.isfinite(step)):
            return
        if (attempt, by_clock) != self._of:
            self._of, self._seen = (attempt, by_clock), None
            self._gaps.clear()
            self.forget()
        if self._at is not None and step < self._at[1] / 2:
            # Another epoch, or another stage of the training: three gaps of its own outweigh what is kept.
            self._gaps = deque(list(self._gaps)[-KEPT_GAPS:], GAPS)
        if self._at is None or step < self._at[1] or t < self._at[0]:
            self._from, self._at = None, (t, step)
            return
        apart_s = APART_S
        if by_clock:
            apart_s = _apart_s(t, self._at[0])
        if t == self._at[0]:  # read at once: only the last of them is as old as that
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
            self._seen = None

    def forget(self) -> None:
        """The next step does not follow directly on the last one."""
        self._from = self._at = None

    @property
    def attempt(self) -> int:
        """The attempt whose steps these are; 0 before the first step."""
        return self._of[0]

    def seconds(self) -> float | None:
        """Seconds a step, the median over the newest gaps; None while there are none."""
        return self._looked_at()[1]

    def track(self) -> Track:
        """The gaps, in seconds a step; the same object until something is added."""
        return self._looked_at()[0]

    def _looked_at(self) -> tuple[Track, float | None]:
        if self._seen is None:
            self._seen = (tuple(self._gaps), median(gap.mean for gap in self._gaps))
        return self._seen


def _apart_s(t: float, before: float) -> float:
    """How far two clocks of lines are apart at least to tell a gap between them."""
    return APART_BY_FINE_CLOCK_S if t % 1 and before % 1 else APART_BY_CLOCK_S


class Cadence:
    """How often a rank logs a step: seconds and steps from one such line to the next."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS)
        self._at: tuple[float, float] | None = None

    def add(self, t: float, step: float) -> None:
        """It logged a step at `t`, wall seconds; several lines of one step are one."""
        if self._at is not None and step == self._at[1]:
            return
        if self._at is not None and step > self._at[1] and t >= self._at[0]:
            self._gaps.append((t - self._at[0], step - self._at[1]))
        self._at = (t, step)

    def forget(self) -> None:
        """The next step does not follow directly on the last one."""
        self._at = None

    def usual(self) -> tuple[float, float] | None:
        """The medians; None while they are not known."""
        if len(self._gaps) < LEAST_LOGGED:
            return None
        seconds, steps = (median(values) or 0.0 for values in zip(*self._gaps, strict=True))
        return seconds, steps


def ranks_behind(ranks: Mapping[str, Rank]) -> tuple[frozenset[str], bool]:
    """The ranks that stopped logging steps while others continue; and whether that is a habit: most of them did.

    Each is measured by its own usual gap. Where all stopped none is behind: that is a stall. Many a script logs its first steps
    on all ranks and the rest on one.
    """
    stepped = {name: rank for name, rank in ranks.items() if rank.stepped_t is not None}
    newest_t = max((rank.stepped_t or 0.0 for rank in stepped.values()), default=0.0)
    furthest = max((rank.values.get("step") or 0.0 for rank in stepped.values()), default=0.0)
    found = frozenset(
        name
        for name, rank in stepped.items()
        if rank.cadence is not None
        and newest_t - (rank.stepped_t or 0.0) > max(SILENT_S, SILENT_GAPS * rank.cadence[0])
        and furthest - (rank.values.get("step") or 0.0) >= SILENT_GAPS * rank.cadence[1]
    )
    return found, 2 * len(found) > len(stepped)
