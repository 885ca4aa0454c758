"""Static plotext charts for the console: the loss curve in the headless summary and ``stoker export --chart``.

The TUI draws its live charts with its own braille-strip widget, which is 6 to 9 times cheaper. Only this
file imports plotext.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from supervisor.run.series import METRICS, ROLLUP_S, SeriesReader, read_rollups
from supervisor.text.decode import printable

MAX_POINTS = 400
MOST_DRAWN = 1e100  # larger values overflow a float, and plotext cannot draw them


def loss_points(series: Path, name: str = "loss") -> list[tuple[int, float | None, float]]:
    """Return a metric as (attempt, step, value) tuples in time order. Step is None if the line did not print one."""
    reader = SeriesReader(series, METRICS)
    points: list[tuple[int, float | None, float]] = []
    samples = reader.read()
    if samples and reader.is_thinned:  # one mean per minute for older values
        for minute in read_rollups(series, METRICS):
            if name in minute.v and minute.t + ROLLUP_S <= samples[0].t:
                steps = minute.v.get("step")
                points.append((minute.a, steps[2] if steps else None, minute.v[name][1]))
    while samples:
        for sample in samples:
            value = sample.v.get(name)
            step = sample.v.get("step")
            if value is not None and abs(value) < MOST_DRAWN:  # nan is skipped, too
                points.append((sample.a, step, value))
        samples = reader.read()
    return points


def draw(
    points: Sequence[tuple[int, float | None, float]],
    *,
    title: str,
    width: int = 72,
    height: int = 15,
    colour: bool = False,
) -> str:
    """Plot the points as text, with one curve per attempt. Return "" if there are fewer than two points.

    Points are thinned to `MAX_POINTS` bucket means, as many as a terminal can show. If a step is missing, plot by index.
    """
    if len(points) < 2:
        return ""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    attempts = sorted({attempt for attempt, _, _ in points})
    has_steps = all(step is not None for _, step, _ in points)
    for attempt in attempts:
        mine = [
            (step if has_steps and step is not None else float(at), value)
            for at, (number, step, value) in enumerate(points, 1)
            if number == attempt
        ]
        xs, ys = _thin(mine)
        # Without color, the marker identifies the attempt: fine for the newest, coarse for earlier attempts.
        marker = "braille" if attempt == attempts[-1] else "dot"
        plotext.plot(xs, ys, label=f"attempt {attempt}" if len(attempts) > 1 else None, marker=marker)
    plotext.title(printable(title))
    plotext.xlabel("step" if has_steps else "value")
    drawn = str(plotext.build())
    plotext.clear_figure()
    return drawn if colour else str(plotext.uncolorize(drawn))


def _thin(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    size = math.ceil(len(points) / MAX_POINTS)
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    xs = [sum(x for x, _ in bucket) / len(bucket) for bucket in buckets]
    ys = [sum(y for _, y in bucket) / len(bucket) for bucket in buckets]
    return xs, ys
