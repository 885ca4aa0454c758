"""When a panel is composed again, and which number an arrow puts into the batch dialog: without an app."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.segment import Segment
from textual.strip import Strip

from supervisor.job.batch import BatchSpec
from supervisor.views.tui.dialogs.restart import BatchScreen
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


class Resting(Counted):
    rests = True


def test_a_chart_that_keeps_changing_is_composed_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Resting(id="x")
    clock = [100.0]
    monkeypatch.setattr(
        "supervisor.views.tui.widgets.panel.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    for n in range(100):  # ten seconds
        clock[0] = 100 + n / 10
        panel.show(View(snapshot_of(state_of(None, attempt_of(n))), 1.0))
    assert 18 <= panel.times <= 22
    before = panel.times
    panel.tick(View(snapshot_of(state_of()), 1.0))
    assert panel.times == before + 1, "what came last is drawn with the next second"


@pytest.mark.parametrize(
    ("typed", "way", "shown"),
    [
        ("8", 1, "4"),
        ("8", -1, "16"),
        ("5", 1, "4"),
        ("5", -1, "8"),
        ("16", -1, "16"),
        ("99", -1, "16"),
        ("1", 1, "1"),
        ("0", 1, "1"),
        ("", 1, "2"),
        ("x", -1, "8"),
    ],
)
def test_an_arrow_goes_to_the_next_number_that_divides(
    monkeypatch: pytest.MonkeyPatch, typed: str, way: int, shown: str
) -> None:
    screen = BatchScreen(BatchSpec(8, 2, 2), 4)
    field = SimpleNamespace(value=typed, cursor_position=0)
    monkeypatch.setattr(screen, "query_one", lambda _kind: field)
    screen.action_other(way)
    assert (field.value, field.cursor_position) == (shown, len(shown))
