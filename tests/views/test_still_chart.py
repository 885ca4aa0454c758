"""The curve as text: steps as the log told them, and none invented where it told none."""

from __future__ import annotations

from pathlib import Path

from supervisor.run.series import METRICS, SeriesWriter
from supervisor.views.headless.still_chart import draw, loss_points


def test_a_step_that_no_line_told_is_unknown_and_the_values_are_counted(tmp_path: Path) -> None:
    series = SeriesWriter(tmp_path)
    for number, loss in enumerate((3.0, 2.0, 1.0)):
        series.append(METRICS, float(number), "job", 1, {"loss": loss})
    series.close()
    points = loss_points(tmp_path)
    assert points == [(1, None, 3.0), (1, None, 2.0), (1, None, 1.0)]
    drawn = draw(points, title="loss")
    assert drawn.rstrip().endswith("value")
    assert "1.0" in drawn.splitlines()[-2]
    assert "3.0" in drawn.splitlines()[-2]


def test_known_steps_stand_on_the_axis() -> None:
    drawn = draw([(1, 10.0, 3.0), (1, 500.0, 1.0)], title="loss")
    assert drawn.rstrip().endswith("step")
    assert "10.0" in drawn.splitlines()[-2]
    assert "500.0" in drawn.splitlines()[-2]
