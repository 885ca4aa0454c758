"""What the x axis of a chart counts: the step, else the epoch, else the lines' own time, else the readings (pure).

A log that was read after it was written says nothing by when it was read: that time is on no axis. An axis is offered where the
points can stand on it: nearly all of them have its value, the values differ, and they do not run back again and again, as a
counter does that starts anew with each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby, pairwise
from operator import attrgetter

from supervisor.views.model.history import Point, Track

# So many of the points must have the value; the others stand where their neighbours do.
KNOWN_RATIO = 0.9
# So many may go back within an attempt: lines of several writers are now and then out of order.
BACK_RATIO = 0.02
# Lines closer together than this were read together: they are told apart by nothing but their order.
TIME_LEAST_S = 2.0


class Axis(StrEnum):
    """What stands below a chart, the best first."""

    STEP = "step"
    EPOCH = "epoch"
    TIME = "time"
    NUMBER = "reading"


def axes_of(tracks: Sequence[Track]) -> list[Axis]:
    """The axes that these points can stand on, the best first; the readings' number always can."""
    given = [track for track in tracks if track]
    if not given:
        return [Axis.STEP]
    return [*(axis for axis in (Axis.STEP, Axis.EPOCH, Axis.TIME) if _carries(given, axis)), Axis.NUMBER]


def axis_for(wanted: Axis | None, tracks: Sequence[Track]) -> Axis:
    """The axis that is wanted, where the points can stand on it; else the best."""
    axes = axes_of(tracks)
    return wanted if wanted in axes else axes[0]


def places(track: Sequence[Point], axis: Axis) -> list[float]:
    """Where each point stands. One without a value stands where the one before it does; readings of one epoch stand within it."""
    if not track:
        return []
    if axis is Axis.NUMBER and not track[-1].number:  # they were not numbered
        return [float(at) for at in range(1, len(track) + 1)]
    values = [value_of(point, axis) for point in track]
    known = next((value for value in values if value is not None), 0.0)
    found = []
    for value in values:
        known = known if value is None else value
        found.append(known)
    return _within_epochs(track, found) if axis is Axis.EPOCH else found


def value_of(point: Point, axis: Axis) -> float | None:
    """What a point has for an axis."""
    return _GIVES[axis](point)


def _carries(tracks: Sequence[Track], axis: Axis) -> bool:
    count = missing = back = gaps = 0
    least, most = float("inf"), float("-inf")
    for track in tracks:
        values = [(value_of(point, axis), point.attempt) for point in track]
        known = [(value, attempt) for value, attempt in values if value is not None]
        count, missing = count + len(values), missing + len(values) - len(known)
        if axis is Axis.TIME and values[0][0] is None:
            return False  # nothing before it says when it was
        gaps += max(len(known) - 1, 0)
        back += sum(b < a for (a, mine), (b, other) in pairwise(known) if mine == other)
        if known:
            least, most = min(least, min(known)[0]), max(most, max(known)[0])
    if missing > (1 - KNOWN_RATIO) * count or back > max(1, BACK_RATIO * gaps):
        return False
    if count == 1:
        return axis is not Axis.EPOCH
    return most - least >= TIME_LEAST_S if axis is Axis.TIME else most > least


def _within_epochs(track: Sequence[Point], values: list[float]) -> list[float]:
    """Whole epochs with several readings each: the readings spread over their epoch, as far apart as those of the one before."""
    if any(value % 1 for value in values):
        return values  # the log says fractions
    found: list[float] = []
    before = 1
    groups = [
        list(group)
        for _, group in groupby(zip(track, values, strict=True), lambda one: (one[0].attempt, one[1]))
    ]
    for number, group in enumerate(groups):
        size = len(group) if number < len(groups) - 1 else max(len(group), before)
        found += [value + at / size for at, (_, value) in enumerate(group)]
        before = len(group)
    return found


_GIVES: dict[Axis, Callable[[Point], float | None]] = {
    Axis.STEP: attrgetter("step"),
    Axis.EPOCH: attrgetter("epoch"),
    Axis.TIME: attrgetter("time"),
    Axis.NUMBER: attrgetter("number"),
}
