"""How long a step takes, from when steps were logged (pure): for scripts that print a step and no time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.views.model.history import Point, Track, median, single

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
# Over so many epochs a time that only grows is known to be that since the start.
LEAST_EPOCHS = 2
# It is that of an epoch where it stays below so many times the first's.
MOST_DRIFT = 5.0
# A logged step time that differs by more than this from the time between the steps is not the run's pace.
PACE_RATIO = 1.25
# Steps that come faster by more than this than their log's own step time were written before they came.
BURST_RATIO = 3.0
# What comes within so long of the moment when a pipe is first read may be what its writer had written before.
BURST_S = 3.0
# Over so many gaps between steps that is known.
LEAST_GAPS = 5
# Step times that are shorter by this factor, in a first attempt too, are those of a bar that was moved. So many that come no nearer
# to the pace, or so many in all, measure something else.
FAR = 10.0
# The smoothed rate of such a bar comes near slowly: it agrees once it is so near.
NEAR_RATIO = 1.05
NO_NEARER = 8
NEARER = 0.9
MOST_FIRST = 60


def is_pace(reported_s: float, pace_s: float, ratio: float = PACE_RATIO) -> bool:
    """Whether steps come about as far apart as the log gives their time."""
    return reported_s / ratio <= pace_s <= reported_s * ratio


def job_pace(
    reported_s: float | None, logged_s: Iterable[float], pace_s: float | None, gaps: int
) -> tuple[float | None, bool]:
    """Seconds from one step of the job to the next, and whether that is derived from when steps were logged.

    Derived where the newest attempt's log gives no step time, or one that the steps do not bear out: a rank's own time without its
    waits, or that of ten steps.

    Args:
        reported_s: the newest step time that was logged.
        logged_s: the newest ones, about as many as there are gaps.
        pace_s: by when steps were logged.
        gaps: how many gaps between steps that is taken from.
    """
    usual_s = median(logged_s)
    if reported_s is None:
        return pace_s, pace_s is not None
    if usual_s is not None and pace_s is not None:
        is_known = gaps >= LEAST_GAPS or (gaps > 1 and usual_s * FAR < pace_s)
        if is_known and not is_pace(usual_s, pace_s):
            return pace_s, True
    return reported_s, False


def came_at_once(timed: Track, gaps: Track) -> bool:
    """Whether steps came much faster than their log's own step time allows, and that is not the time of all steps between two of its lines.

    Args:
        timed: the step times that were logged.
        gaps: seconds a step, by when they came.
    """
    usual_s, came_s = median(point.mean for point in timed), median(gap.mean for gap in gaps)
    if usual_s is None or came_s is None or usual_s <= came_s * BURST_RATIO:
        return False
    steps = [point.step for point in timed if point.step is not None]
    apart = median(b - a for a, b in pairwise(steps) if b > a)
    return apart is None or not is_pace(usual_s, came_s * apart)


def epoch_times(printed: Track) -> Track:
    """How long each epoch took, by a log that prints a time with each; where that is the time since the start, what it grew by.

    A time since the start never falls, and grows by about as much with each epoch, or to many times the first epoch's.
    """
    gaps = [
        b._replace(low=grew, mean=grew, high=grew)
        for a, b in pairwise(printed)
        if a.epoch is not None and b.epoch is not None and b.epoch > a.epoch
        for grew in ((b.mean - a.mean) / (b.epoch - a.epoch),)
    ]
    usual = median(gap.mean for gap in gaps)
    if len(gaps) < LEAST_EPOCHS or usual is None or any(gap.mean <= 0 for gap in gaps):
        return printed
    first, newest = printed[0].mean, printed[-1].mean
    return tuple(gaps) if usual > first / 2 or newest > MOST_DRIFT * first else printed


def epochs_apart(logged: Track) -> Track:
    """Seconds from one epoch to the next of the newest training, by when what was logged of them was written.

    Of a long log a part of each epoch's lines is known, so the middles of epochs are compared, and not their first known lines. The
    last one may not be over. A gap many times the usual one is the time between two trainings.
    """
    epochs: list[list[Point]] = []
    newest: Point | None = None
    for point in logged:
        if point.epoch is None or point.time is None:
            continue
        if newest is not None and not _follows(point, newest):
            epochs = []
        if epochs and math.floor(point.epoch) == math.floor(epochs[-1][0].epoch or 0.0):
            epochs[-1].append(point)
        else:
            epochs.append([point])
        newest = point
    usual = median(len(each) for each in epochs)
    if len(epochs) > LEAST_EPOCHS and usual is not None and 2 * len(epochs[-1]) < usual:
        del epochs[-1]
    found: list[Point] = []
    since: tuple[float, float, float] | None = (
        None  # when the middle of an epoch was, its first line, which epoch
    )
    for each in epochs:
        times = [point.time for point in each if point.time is not None]
        here = (sum(times) / len(times), times[0], sum(point.epoch or 0.0 for point in each) / len(each))
        if since is None:
            since = here
        elif here[0] - since[0] >= _apart_s(here[1], since[1]):
            gap_s = (here[0] - since[0]) / (here[2] - since[2])
            found.append(each[0]._replace(low=gap_s, mean=gap_s, high=gap_s))
            since = here
    usual = median(point.mean for point in found)
    return tuple(point for point in found if point.mean <= MOST_DRIFT * (usual or 0.0))


def _follows(point: Point, before: Point) -> bool:
    """Whether a point is of the same training as the one before it: neither its epoch nor its time starts again."""
    if point.attempt != before.attempt or point.time is None or before.time is None:
        return False
    return (point.epoch or 0.0) >= (before.epoch or 0.0) and point.time >= before.time


class FirstTimes:
    """Keeps back the step times that a live attempt logs first, until one agrees with the pace of its steps.

    A resumed job moves its progress bar to the step at once: the bar then gives a time far too short for some fifty steps. The first
    time that a later attempt logs may have its start in it. Both are left out, unless none comes to agree.
    """

    def __init__(self) -> None:
        self._attempt = 0
        self._kept: list[Point] | None = []  # None: one agreed, or none will

    def take(self, point: Point, pace_s: float | None) -> Sequence[Point]:
        """One step time; those that are to be shown now. `pace_s`: of the attempt's steps, None while that is not known."""
        if point.attempt != self._attempt:
            self._attempt, self._kept = point.attempt, []
        if self._kept is None or (pace_s is None and point.attempt == 1):
            return (point,)
        if pace_s is not None and not self._kept and point.attempt == 1 and point.mean * FAR > pace_s:
            self._kept = None
            return (point,)
        self._kept.append(point)
        was_moved = pace_s is not None and self._kept[0].mean * FAR < pace_s
        ratio = NEAR_RATIO if was_moved else PACE_RATIO
        if pace_s is not None and is_pace(point.mean, pace_s, ratio):
            longer_s = pace_s if point.attempt == 1 else math.inf
            shown = [p for p in self._kept if is_pace(p.mean, pace_s, ratio) or p.mean > longer_s]
        elif self._may_agree(pace_s):
            return ()
        else:
            shown = self._kept
        self._kept = None
        return shown

    def _may_agree(self, pace_s: float | None) -> bool:
        assert self._kept is not None
        first, newest = self._kept[0].mean, self._kept[-1].mean
        if len(self._kept) < NO_NEARER:
            return True
        if pace_s is None or min(first, newest, pace_s) <= 0 or len(self._kept) >= MOST_FIRST:
            return False
        return abs(math.log(newest / pace_s)) < NEARER * abs(math.log(first / pace_s))


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
