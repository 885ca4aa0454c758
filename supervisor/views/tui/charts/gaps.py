"""Where the curves of two runs lie farthest apart, of all metrics that both have (pure)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.views.model.history import Track, median, smooth
from supervisor.views.tui.charts.axes import Axis, of_track, places, span_of

# A moving mean of fewer points lags behind what it should show.
SMOOTH_FROM = 60
# What is set and not measured has no noise to smooth.
EXACT = frozenset(["lr", "learning_rate"])
# Of what both have the first steps warm up: caches, compilation, the first loss. They are left out before anything is smoothed.
FIRST_SHARE = 0.05
# A gap is one from so many times the noise on: the median distance of a value from its moving mean.
NOISES = 3.0
# And from this share of the values on: less is rounding.
LEAST_RATIO = 0.01


class Gap(NamedTuple):
    """Two curves of one metric, `mine` and `theirs` at the place `at` of an axis."""

    at: float
    mine: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How large it is, as a share of the greater value: gaps of different metrics compare by it."""
        return abs(self.mine - self.theirs) / (max(abs(self.mine), abs(self.theirs)) or 1.0)


class _Curve(NamedTuple):
    xs: Sequence[float]
    ys: Sequence[float]
    noise: float


def gap_between(name: str, mine: Track, theirs: Track, axis: Axis) -> Gap | None:
    """Where two curves of one metric are farthest apart; None: they share no place, or it is noise."""
    spans = span_of(mine, axis), span_of(theirs, axis)
    if spans[0] is None or spans[1] is None:
        return None
    low, high = max(spans[0][0], spans[1][0]), min(spans[0][1], spans[1][1])
    low += FIRST_SHARE * max(high - low, 0.0)
    a, b = (_curve(track, axis, low, is_exact=name in EXACT) for track in (mine, theirs))
    shared = [(x, y, _at(b, x)) for x, y in zip(a.xs, a.ys, strict=True) if x <= high] if b.xs else []
    if not shared:
        return None
    found = Gap(*max(shared, key=lambda one: abs(one[1] - one[2])))
    is_noise = abs(found.mine - found.theirs) <= NOISES * max(a.noise, b.noise)
    return None if is_noise or found.ratio < LEAST_RATIO else found


@of_track
def _curve(track: Track, axis: Axis, low: float, *, is_exact: bool) -> _Curve:
    """The finite values from a place on, in the order of their places, smoothed; of a place that was passed twice the later value."""
    kept = [(x, point) for x, point in zip(places(track, axis), track, strict=True) if x >= low]
    xs, track = [x for x, _ in kept], tuple(point for _, point in kept)
    means = [point.mean for point in track]
    drawn = means if is_exact or len(track) < SMOOTH_FROM else smooth(track)
    known = {x: y for x, y in zip(xs, drawn, strict=True) if math.isfinite(y)}
    ordered = sorted(known)
    noise = median(abs(raw - y) for raw, y in zip(means, drawn, strict=True) if math.isfinite(raw - y))
    return _Curve(ordered, [known[x] for x in ordered], noise or 0.0)


def _at(curve: _Curve, x: float) -> float:
    """The value between the two points around a place."""
    at = min(max(bisect_left(curve.xs, x), 1), max(len(curve.xs) - 1, 1))
    if len(curve.xs) < 2:
        return curve.ys[0]
    (x0, x1), (y0, y1) = curve.xs[at - 1 : at + 1], curve.ys[at - 1 : at + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
