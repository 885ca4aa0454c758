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
    title, *rows = draw(points, title="loss").splitlines()
    assert title.strip() == "loss by value"
    assert rows[-1].split() == ["1", "2", "3"]


def test_known_steps_stand_on_the_axis_and_a_later_attempt_is_marked() -> None:
    drawn = draw([(1, 0.0, 3.0), (1, 500.0, 1.0), (2, 500.0, 1.0), (2, 600.0, 0.5)], title="loss\x1b")
    assert drawn.splitlines()[0].strip() == r"loss\x1b by step"
    assert drawn.splitlines()[-1].split()[0] == "0"
    assert "↻ 2" in drawn
    assert draw([(1, 0.0, 3.0)], title="loss") == ""
