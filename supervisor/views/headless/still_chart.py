"""Still charts on a console, drawn as the app's are: the loss curve of the summary without a screen, and of ``stoker chart``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from supervisor.run.series import METRICS, ROLLUP_S, SeriesReader, read_rollups
from supervisor.text.decode import printable
from supervisor.views.model.history import single

MOST_DRAWN = 1e100  # the squares and spans of larger ones are beyond a float


def loss_points(series: Path, name: str = "loss") -> list[tuple[int, float | None, float]]:
    """(attempt, step, value) of a metric, in the order of time. The step is None where no line gave one."""
    reader = SeriesReader(series, METRICS)
    points: list[tuple[int, float | None, float]] = []
    samples = reader.read()
    if samples and reader.is_thinned:  # of what is older, a mean a minute
        for minute in read_rollups(series, METRICS):
            if name in minute.v and minute.t + ROLLUP_S <= samples[0].t:
                steps = minute.v.get("step")
                points.append((minute.a, steps[2] if steps else None, minute.v[name][1]))
    while samples:
        for sample in samples:
            value = sample.v.get(name)
            if value is not None and abs(value) < MOST_DRAWN:  # nan, too, is left out
                points.append((sample.a, sample.v.get("step"), value))
        samples = reader.read()
    return points


def draw(
    points: Sequence[tuple[int, float | None, float]], *, title: str, width: int = 72, height: int = 15
) -> str:
    """The curve as text, each later attempt marked where it begins; "" where there are fewer than two points.

    Where a step is unknown, the values are counted.
    """
    if len(points) < 2:
        return ""
    from supervisor.views.tui.charts.axes import Axis, axis_for
    from supervisor.views.tui.charts.curves import Curve, Look, Mark, plot
    from supervisor.views.tui.widgets.paint import TextStyle

    has_steps = all(step is not None for _, step, _ in points)
    track = tuple(
        single(float(at), step if has_steps else None, value, attempt)._replace(number=at)
        for at, (attempt, step, value) in enumerate(points, 1)
    )
    begins = {point.attempt: point for point in reversed(track)}
    marks = [
        Mark(point.step, point.t, f"↻ {attempt}", TextStyle.DIM, attempt, begins=True)
        for attempt, point in begins.items()
        if attempt != track[0].attempt
    ]
    axis = axis_for(Axis.STEP if has_steps else Axis.NUMBER, [track])
    drawn = plot([Curve(track)], Look(axis=axis), width, height - 1, marks=marks)
    if drawn is None:
        return ""
    rows = ["".join(span.text for span in row).rstrip() for row in drawn.rows]
    counted = "step" if axis is Axis.STEP else "value"
    return "\n".join([f"{printable(title)} by {counted}".center(width).rstrip(), *rows])
