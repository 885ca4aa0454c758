"""Which panes a terminal's size shows: what gives way first, and that the log never goes."""

from __future__ import annotations

import pytest

from supervisor.views.tui.dashboard.panes import ALWAYS, Layout, Needs, plan

NEEDS = Needs(devices=2, ranks=2)
CPU = Needs(devices=3, ranks=2, gpus=False)
BASE = ALWAYS | {"log"}


@pytest.mark.parametrize(
    ("width", "height", "needs", "more", "sizes"),
    [
        (80, 18, NEEDS, "devices", [1, 0, 1]),
        (80, 24, NEEDS, "devices loss", [10, 8, 2]),
        (99, 50, NEEDS, "devices loss tiles", [20, 18, 2]),
        (100, 24, NEEDS, "devices loss ranks", [13, 3, 0, 58, 36]),
        (100, 30, NEEDS, "charts devices loss ranks tiles", [16, 4, 7, 58, 36]),
        (100, 29, NEEDS, "charts devices loss ranks", [16, 4, 7, 58, 36]),
        (120, 40, Needs(devices=4, ranks=2), "charts devices loss ranks tiles", [23, 6, 11, 66, 43]),
        (149, 36, NEEDS, "charts devices loss ranks tiles", [20, 4, 11, 67, 53]),
        (150, 36, NEEDS, "charts devices loss ranks tiles timeline", [21, 4, 11, 67, 54]),
        (160, 36, NEEDS, "charts devices loss ranks tiles timeline", [21, 4, 11, 72, 57]),
        (200, 60, NEEDS, "charts devices loss ranks tiles timeline", [37, 4, 23, 90, 72]),
        # Without a GPU no chart says how busy the machine is.
        (120, 40, CPU, "devices loss ranks tiles", [23, 5, 0, 66, 43]),
        # Many ranks need the room themselves.
        (200, 50, Needs(devices=8, ranks=64), "charts devices loss ranks tiles timeline", [31, 10, 6, 90, 72]),
        # Of a log from elsewhere no machine is shown.
        (120, 60, Needs(devices=0, ranks=0), "loss tiles", [36, 0, 0, 66, 43]),
        (200, 60, Needs(devices=0, ranks=8), "loss ranks tiles timeline", [37, 0, 0, 90, 72]),
        # A failure card takes the place of the charts.
        (80, 24, Needs(devices=2, ranks=2, card_rows=9), "card", [9, 9, 0]),
        (80, 24, Needs(devices=2, ranks=2, card_rows=40), "card", [13, 13, 0]),
        (80, 14, Needs(devices=2, ranks=2, card_rows=40), "card", [6, 6, 0]),
        (120, 40, Needs(devices=2, ranks=2, card_rows=12), "card tiles", [12, 0, 0, 66, 43]),
        (150, 40, Needs(devices=2, ranks=2, card_rows=40), "card charts devices ranks tiles timeline", [27, 4,
            16, 67, 54]),
        (150, 40, Needs(devices=2, ranks=2, card_rows=12), "card charts devices ranks tiles timeline", [20, 4,
            11, 67, 54]),
    ],
)  # fmt: skip
def test_what_a_size_shows(width: int, height: int, needs: Needs, more: str, sizes: list[int]) -> None:
    """In one column: the heights of both panes, the upper one and the devices. Else: the heights of all panes on the right, the
    devices and the charts, and the widths of the right side and the timeline."""
    layout = plan(width, height, needs)
    names = ("middle", "left", "devices") if width < 100 else ("middle", "devices", "charts")
    heights, widths = (
        dict(zip(names, sizes, strict=False)),
        dict(zip(("right", "timeline"), sizes[3:], strict=False)),
    )
    assert layout == Layout(BASE | set(more.split()), heights, widths, is_narrow=width < 100)


@pytest.mark.parametrize("width", [90, 120, 180])
def test_a_higher_terminal_shows_no_less(width: int) -> None:
    before: frozenset[str] = frozenset()
    for height in range(16, 90):
        shown = plan(width, height, NEEDS).shown
        assert before <= shown, height
        before = shown


def test_a_pane_alone() -> None:
    assert plan(80, 24, Needs(devices=2, ranks=2, zoomed="ranks")) == Layout(ALWAYS | {"ranks"})
