"""Which panes a terminal's size shows: what gives way first, and that the log never goes."""

from __future__ import annotations

import pytest

from supervisor.views.tui.dashboard.panes import ALWAYS, Layout, Needs, plan

NEEDS = Needs(devices=2, ranks=2)
CPU = Needs(devices=3, ranks=2, gpus=False)
BASE = ALWAYS | {"log"}


@pytest.mark.parametrize(
    ("width", "height", "needs", "more"),
    [
        (80, 18, NEEDS, "devices"),
        (80, 24, NEEDS, "devices loss"),
        (99, 50, NEEDS, "devices loss tiles"),
        (100, 24, NEEDS, "devices loss ranks"),
        (100, 30, NEEDS, "charts devices loss ranks tiles"),
        (160, 36, NEEDS, "charts devices loss ranks tiles timeline"),
        (200, 60, NEEDS, "charts devices loss ranks tiles timeline"),
        # Without a GPU no chart says how busy the machine is.
        (120, 40, CPU, "devices loss ranks tiles"),
        # Many ranks need the room themselves.
        (200, 50, Needs(devices=8, ranks=64), "charts devices loss ranks tiles timeline"),
        # Of a log from elsewhere no machine is shown.
        (120, 60, Needs(devices=0, ranks=0), "loss tiles"),
        (200, 60, Needs(devices=0, ranks=8), "loss ranks tiles timeline"),
        # A failure card takes the place of the charts.
        (80, 24, Needs(devices=2, ranks=2, card_rows=9), "card"),
        (120, 40, Needs(devices=2, ranks=2, card_rows=12), "card tiles"),
        (150, 40, Needs(devices=2, ranks=2, card_rows=12), "card charts devices ranks tiles timeline"),
    ],
)
def test_what_a_size_shows(width: int, height: int, needs: Needs, more: str) -> None:
    assert plan(width, height, needs).shown == BASE | set(more.split())


@pytest.mark.parametrize("width", [90, 120, 180])
def test_a_higher_terminal_shows_no_less(width: int) -> None:
    before: frozenset[str] = frozenset()
    for height in range(16, 90):
        shown = plan(width, height, NEEDS).shown
        assert before <= shown, height
        before = shown


@pytest.mark.parametrize(
    ("height", "rows", "middle"),
    [(24, 9, 9), (24, 40, 24 - 4 - 7), (14, 40, 6)],
)
def test_a_card_takes_what_it_needs_and_leaves_the_log_its_rows(height: int, rows: int, middle: int) -> None:
    assert plan(80, height, Needs(devices=2, ranks=2, card_rows=rows)).heights["middle"] == middle


def test_a_pane_alone() -> None:
    assert plan(80, 24, Needs(devices=2, ranks=2, zoomed="ranks")) == Layout(ALWAYS | {"ranks"})
