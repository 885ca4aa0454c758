"""Chooses the x axis of a chart: steps, or else epochs, times in the log, or readings (pure).

For a log that is read after it was written, the time of reading means nothing and is on no axis. An axis is
offered if nearly all points have a value for it, the values differ, and they never drop sharply within an
attempt, as a counter that restarts with each epoch does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from supervisor.views.model.thinned_series import Point, Track

# This share of the points must have the value; the others are placed with their neighbors.
KNOWN_RATIO = 0.9
# A value below this share of the previous one means that the counter restarted.
BACK_RATIO = 0.5
# Lines closer together than this were read together: only their order distinguishes them.
TIME_LEAST_S = 2.0
# A page of charts makes the same query for about a hundred tracks at each key.
MOST_KEPT = 512

P = ParamSpec("P")
T = TypeVar("T")


def of_track(work: Callable[Concatenate[Track, P], T]) -> Callable[Concatenate[Track, P], T]:
    """Caches `work` for the very same track and arguments: hashing a track for `lru_cache` takes as long."""
    kept: dict[tuple[object, ...], tuple[Track, T]] = {}

    def kept_work(track: Track, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (id(track), *args, *kwargs.items())
        found = kept.get(key)
        if found is None or found[0] is not track:  # an id may be reused
            if len(kept) >= MOST_KEPT:
                kept.clear()
            found = kept[key] = (track, work(track, *args, **kwargs))
        return found[1]

    return kept_work


class Axis(StrEnum):
    """The kinds of x axis, best first."""

    STEP = "step"
    EPOCH = "epoch"
    TIME = "time"
    NUMBER = "reading"


def axes_of(tracks: Sequence[Track]) -> list[Axis]:
    """The axes that fit these points, best first; the readings' number always does."""
    given = [track for track in tracks if track]
    if not given:
        return [Axis.STEP]
    return [axis for axis in Axis if axis is Axis.NUMBER or _can_hold(given, axis)]


def axis_for(wanted: Axis | None, tracks: Sequence[Track]) -> Axis:
    """The wanted axis if it fits the points, else the best."""
    axes = axes_of(tracks)
    return wanted if wanted in axes else axes[0]


@of_track
def positions(track: Track, axis: Axis) -> Sequence[float]:
    """The position of each point, or of the previous one if it has no value; readings are spread within their epoch."""
    if axis is Axis.NUMBER and track and not track[-1].number:  # not numbered
        return [float(at) for at in range(1, len(track) + 1)]
    values = [value_of(point, axis) for point in track]
    known = next((value for value in values if value is not None), 0.0)
    found = []
    for value in values:
        known = known if value is None else value
        found.append(known)
    return _within_epochs(track, found) if axis is Axis.EPOCH else found


def value_of(point: Point, axis: Axis) -> float | None:
    """The value of a point on an axis."""
    return _GIVES[axis](point)


@of_track
def shifted(track: Track, by_s: float) -> Track:
    """The same points at other times, for a run that started earlier or later."""
    return tuple(
        point._replace(t=point.t + by_s, line_t=None if point.line_t is None else point.line_t + by_s)
        for point in track
    )


@of_track
def span_of(track: Track, axis: Axis) -> tuple[float, float] | None:
    """The least and the greatest position of a track's points; None without points."""
    found = positions(track, axis)
    return (min(found), max(found)) if found else None


class _Values(NamedTuple):
    """A track's values on an axis. `falls_back`: whether a value is far below the previous one in its attempt."""

    size: int
    known: int
    falls_back: bool
    low: float
    high: float
    is_first_known: bool


@of_track
def _values(track: Track, axis: Axis) -> _Values:
    values = list(map(_GIVES[axis], track))
    known = [(point.attempt, value) for point, value in zip(track, values, strict=True) if value is not None]
    numbers = [value for _, value in known]
    return _Values(
        size=len(values),
        known=len(known),
        falls_back=any(mine == other and b < BACK_RATIO * a for (mine, a), (other, b) in pairwise(known)),
        low=min(numbers, default=float("inf")),
        high=max(numbers, default=float("-inf")),
        is_first_known=values[0] is not None,
    )


def _within_epochs(track: Track, values: list[float]) -> list[float]:
    """For whole epochs with several readings each: spread the readings over their epoch, spaced as in the previous one."""
    if any(value % 1 for value in values):
        return values  # the log has fractions
    found: list[float] = []
    before = 1
    keys = [(point.attempt, value) for point, value in zip(track, values, strict=True)]
    groups = [(value, len(list(group))) for (_, value), group in groupby(keys)]
    for number, (value, count) in enumerate(groups):
        size = count if number < len(groups) - 1 else max(count, before)
        found += [value + at / size for at in range(count)]
        before = count
    return found


def _can_hold(tracks: Sequence[Track], axis: Axis) -> bool:
    found = [_values(track, axis) for track in tracks]
    count = sum(each.size for each in found)
    if any(each.falls_back for each in found) or sum(each.known for each in found) < KNOWN_RATIO * count:
        return False
    if axis is Axis.TIME and not all(each.is_first_known for each in found):
        return False  # nothing before it shows its time
    if count == 1:
        return axis is not Axis.EPOCH
    span = max(each.high for each in found) - min(each.low for each in found)
    return span >= TIME_LEAST_S if axis is Axis.TIME else span > 0


_GIVES: dict[Axis, Callable[[Point], float | None]] = {
    Axis.STEP: attrgetter("step"),
    Axis.EPOCH: attrgetter("epoch"),
    Axis.TIME: attrgetter("time"),
    Axis.NUMBER: attrgetter("number"),
}
