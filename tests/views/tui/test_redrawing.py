"""When a panel is composed again, and which number an arrow puts into the batch dialog: without an app."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip

from supervisor.views.tui.widgets.panel import Panel, View
from tests.views.tui.still import attempt_of, snapshot_of, state_of


class Counted(Panel):
    """How often it was composed."""

    times = 0

    def repaint(self) -> None:
        """What an app would paint."""
        self.times += 1
        self._is_stale = False
        self._strips = [Strip([Segment("x")])]


class Clocked(Counted):
    uses_clock = True


def test_a_panel_is_composed_again_where_what_it_draws_from_differs() -> None:
    panel = Counted(id="x")
    snapshot = snapshot_of(state_of())
    panel.show(View(snapshot, 1.0))
    assert panel.times == 1, "for the first time"
    panel.show(View(snapshot, 9.0))
    assert panel.times == 1, "the same facts, later"
    panel.show(View(snapshot_of(state_of(None, attempt_of(2))), 9.0))
    assert panel.times == 2
    panel._strips = []
    panel.show(View(snapshot, 9.0))
    panel._strips = []
    panel.show(View(snapshot, 9.0))
    assert panel.times == 4, "what was not seen has nothing drawn"
    panel.tick(View(snapshot, 20.0))
    assert panel.times == 4


def test_a_panel_with_a_clock_is_composed_again_each_second() -> None:
    panel = Clocked(id="x")
    snapshot = snapshot_of(state_of())
    for now, times in ((1.0, 1), (1.9, 1), (2.0, 2), (2.9, 2), (2.0, 2), (1.9, 3)):
        panel.show(View(snapshot, now))
        assert panel.times == times
    panel.tick(View(snapshot, 1.9))
    assert panel.times == 4
