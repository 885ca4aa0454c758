"""What the x axis of a chart counts, by what the log says."""

from __future__ import annotations

import pytest

from supervisor.views.model.thinned_series import Point, single
from supervisor.views.tui.charts.axes import Axis, axes_of, axis_for, positions
from supervisor.views.tui.charts.curves import Curve, Look, Mark, plot
from supervisor.views.tui.widgets.paint import TextStyle
from tests.views.tui.still import text_of

READ_T = 1_790_000_000.0
"""When all of it was read, within a moment."""


def late(
    number: int, *, step: float | None = None, epoch: float | None = None, line_t: float | None = None
) -> Point:
    """A loss out of a log that was read after it was written."""
    point = single(READ_T + number / 1000, step, 2.0 + number % 3, 1)
    return point._replace(epoch=epoch, number=number, late=True, line_t=line_t)


def test_a_log_of_bare_losses_stands_by_its_readings_and_never_by_when_it_was_read() -> None:
    track = tuple(late(n) for n in range(1, 101))
    assert axes_of([track]) == [Axis.NUMBER]
    assert positions(track, Axis.NUMBER) == [float(n) for n in range(1, 101)]
    drawn = plot([Curve(track)], Look(axis=Axis.TIME), 60, 12)
    assert drawn is not None
    assert (drawn.x.low, drawn.x.high) == (1.0, 100.0)
    assert ":" not in text_of(drawn.rows), "no clock"


def test_the_best_axis_is_the_step_then_the_epoch_then_the_lines_own_time() -> None:
    full = tuple(late(n, step=n * 10, epoch=n / 10, line_t=5000.0 + 60 * n) for n in range(1, 50))
    assert axes_of([full]) == [Axis.STEP, Axis.EPOCH, Axis.TIME, Axis.NUMBER]
    stepless = tuple(p._replace(step=None) for p in full)
    assert axis_for(None, [stepless]) is Axis.EPOCH
    assert positions(stepless, Axis.EPOCH)[:2] == [0.1, 0.2], "fractional where the log says so"
    stamped = tuple(p._replace(epoch=None) for p in stepless)
    assert axis_for(None, [stamped]) is Axis.TIME
    assert positions(stamped, Axis.TIME)[0] == 5060.0
    assert axis_for(Axis.NUMBER, [stamped]) is Axis.NUMBER, "what is asked for"
    assert axes_of([()]) == [Axis.STEP]


def test_a_counter_that_starts_again_and_again_is_no_axis() -> None:
    """Else every epoch would be drawn over the one before."""
    folded = tuple(late(n, step=n % 10, epoch=1 + n // 10) for n in range(100))
    assert axis_for(None, [folded]) is Axis.EPOCH
    assert axis_for(None, [tuple(p._replace(epoch=None) for p in folded)]) is Axis.NUMBER
    once = tuple(late(n, step=n - 3 * (n % 7 == 0), epoch=None) for n in range(1, 100))
    assert axis_for(None, [once]) is Axis.STEP, "a line out of order now and then"


def test_a_few_epochs_of_thousands_of_steps_do_not_lie_over_each_other() -> None:
    """Three restarts among hundreds of readings are no lines out of order."""
    folded = tuple(late(n, step=10 * (n % 250), epoch=n // 250) for n in range(1000))
    assert axis_for(None, [folded]) is Axis.EPOCH


def test_readings_of_one_epoch_spread_over_it() -> None:
    track = tuple(late(n, epoch=1 + n // 4) for n in range(10))
    assert positions(track, Axis.EPOCH) == [1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.25]
    each = tuple(late(n, epoch=n) for n in range(1, 4))
    assert positions(each, Axis.EPOCH) == [1, 2, 3]


def test_the_few_that_lack_a_step_stand_where_the_ones_before_them_do() -> None:
    track = tuple(late(n, step=None if n == 5 else n) for n in range(1, 21))
    assert axis_for(None, [track]) is Axis.STEP
    assert positions(track, Axis.STEP)[3:6] == [4, 4, 6]
    half = tuple(late(n, step=None if n % 2 else n) for n in range(1, 21))
    assert axis_for(None, [half]) is Axis.NUMBER


def test_what_is_read_live_stands_by_the_clock_unless_what_stood_there_has_none() -> None:
    live = tuple(single(READ_T + n, None, 2.0, 1)._replace(number=n) for n in range(1, 50))
    assert axis_for(None, [live]) is Axis.TIME
    both = (*(late(n) for n in range(1, 3)), *live)
    assert axis_for(None, [both]) is Axis.NUMBER
    at_once = tuple(single(READ_T + n / 1000, None, 2.0, 1)._replace(number=n) for n in range(1, 50))
    assert axis_for(None, [at_once]) is Axis.NUMBER, "a log that was poured into a pipe"


@pytest.mark.parametrize(("begins", "at"), [(False, 3.0), (True, 1.0)])
def test_a_mark_stands_at_its_attempts_end_or_begin(begins: bool, at: float) -> None:
    track = tuple(late(n, epoch=n) for n in range(1, 4)) + tuple(
        late(n, epoch=n)._replace(attempt=2) for n in range(4, 9)
    )
    mark = Mark(None, 0.0, "here", TextStyle.BAD, 1, begins)
    drawn = plot([Curve(track)], Look(), 60, 12, marks=[mark])
    assert drawn is not None
    lines = [line for line in text_of(drawn.rows).splitlines() if "┊" in line]
    assert lines
    assert abs(lines[0].index("┊") - drawn.left - drawn.x.dot(at) // 2) <= 1
