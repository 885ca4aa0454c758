"""Which panes a terminal's size shows: what gives way first, and that the log never goes."""

from __future__ import annotations

import pytest

from supervisor.views.tui.dashboard.layout import ALWAYS, Layout, Needs, plan

NEEDS = Needs(devices=2, ranks=2, trends=5)
BASE = ALWAYS | {"log"}


@pytest.mark.parametrize(
    ("width", "height", "more"),
    [
        (80, 24, "devices loss"),
        (80, 18, "devices"),
        (80, 19, "devices loss"),
        (80, 30, "devices loss attempts tiles"),
        (99, 50, "devices loss attempts tiles"),
        (100, 24, "devices loss ranks"),
        (100, 30, "attempts charts devices loss ranks tiles"),
        (149, 60, "attempts charts devices loss ranks tiles"),
        (150, 36, "attempts charts devices loss ranks tiles timeline"),
        (160, 40, "attempts charts devices loss ranks tiles timeline trends"),
        (200, 60, "attempts charts devices loss ranks tiles timeline trends"),
    ],
)
def test_what_a_size_shows(width: int, height: int, more: str) -> None:
    assert plan(width, height, NEEDS).shown == BASE | set(more.split())


@pytest.mark.parametrize(
    ("width", "ranks", "more"),
    [
        (120, 0, "attempts loss tiles"),
        (120, 8, "attempts loss ranks tiles"),
        (200, 0, "attempts loss tiles timeline"),
        (200, 8, "attempts loss ranks tiles timeline"),
    ],
)
def test_of_a_log_from_elsewhere_no_machine_is_shown(width: int, ranks: int, more: str) -> None:
    assert plan(width, 60, Needs(devices=0, ranks=ranks)).shown == BASE | set(more.split())


@pytest.mark.parametrize("width", [90, 120, 180])
def test_a_higher_terminal_shows_no_less(width: int) -> None:
    before: frozenset[str] = frozenset()
    for height in range(16, 90):
        shown = plan(width, height, NEEDS).shown
        assert before <= shown, height
        before = shown


def heights(layout: Layout) -> tuple[int | None, int | None, int, int]:
    return layout.middle_height, layout.devices_height, layout.charts_height, layout.trends_height


@pytest.mark.parametrize(
    ("width", "height", "needs", "expected"),
    [
        (80, 24, NEEDS, (10, 2, 0, 0)),
        (80, 19, Needs(devices=8, ranks=8), (9, 1, 0, 0)),
        (80, 24, Needs(devices=0, ranks=2), (8, 0, 0, 0)),
        (120, 40, NEEDS, (22, 4, 12, 0)),
        (120, 40, Needs(devices=8, ranks=8), (22, 10, 6, 0)),
        (200, 50, NEEDS, (30, 4, 7, 14)),
        (200, 60, NEEDS, (37, 4, 10, 18)),
    ],
)
def test_how_high_the_panes_are(
    width: int, height: int, needs: Needs, expected: tuple[int | None, int | None, int, int]
) -> None:
    assert heights(plan(width, height, needs)) == expected


@pytest.mark.parametrize(
    ("width", "height", "needs", "use", "trends"),
    [
        # Without a GPU no chart says how busy the machine is: speed and gradient have the place.
        (120, 40, Needs(devices=3, ranks=2, gpus=False, trends=4), 0, (11, 2)),
        (200, 50, Needs(devices=3, ranks=2, gpus=False, trends=4), 0, (20, 4)),
        (120, 26, Needs(devices=3, ranks=2, gpus=False, trends=4), 0, (0, 0)),
        # With GPUs what a run has: two rows, one row, none.
        (200, 50, Needs(devices=2, ranks=2, trends=4), 7, (14, 4)),
        (200, 50, Needs(devices=2, ranks=2), 18, (0, 0)),
        (120, 40, Needs(devices=2, ranks=2, trends=4), 12, (0, 0)),
        # Of a log from elsewhere the curves have all of the right column; a single one is not worth half of the width.
        (120, 40, Needs(devices=0, ranks=0, gpus=False, trends=4), 0, (22, 4)),
        (120, 40, Needs(devices=0, ranks=2, gpus=False, trends=4), 0, (17, 4)),
        (120, 40, Needs(devices=0, ranks=0, gpus=False, trends=1), 0, (0, 0)),
        # Many ranks need the room themselves.
        (200, 50, Needs(devices=8, ranks=64, trends=4), 6, (0, 0)),
        (90, 50, Needs(devices=3, ranks=2, gpus=False, trends=4), 0, (0, 0)),
    ],
)
def test_curves_have_the_room_that_is_left_where_their_series_came(
    width: int, height: int, needs: Needs, use: int, trends: tuple[int, int]
) -> None:
    layout = plan(width, height, needs)
    assert (layout.charts_height, layout.trends_height, layout.trends) == (use, *trends)
    assert ("charts" in layout.shown) is (use > 0)
    assert ("trends" in layout.shown) is (trends[1] > 0)


def test_a_card_takes_the_place_of_the_charts_and_what_it_needs() -> None:
    narrow = plan(80, 24, Needs(devices=2, ranks=2, card_rows=9))
    assert narrow.shown == BASE | {"card"}
    assert narrow.middle_height == 9
    assert plan(80, 24, Needs(devices=2, ranks=2, card_rows=40)).middle_height == 24 - 4 - 7, "the log stays"
    assert plan(80, 14, Needs(devices=2, ranks=2, card_rows=40)).middle_height == 6
    roomy = plan(120, 40, Needs(devices=2, ranks=2, loss=False, card_rows=12))
    assert roomy.shown == BASE | {"card", "attempts", "tiles"}
    assert roomy.middle_height == 12
    wide = plan(150, 40, Needs(devices=2, ranks=2, card_rows=12))
    assert {"card", "devices", "ranks"} <= wide.shown


@pytest.mark.parametrize(
    ("width", "height", "needs", "expected"),
    [
        # The loss is below the card in two columns; in one column the card stands alone.
        (120, 40, Needs(devices=0, ranks=0, card_rows=13), (22, 13, True)),
        (200, 50, Needs(devices=2, ranks=2, card_rows=13), (25, 13, True)),
        (80, 24, Needs(devices=0, ranks=0, card_rows=13), (13, None, False)),
        # Not in less than six rows, and not without a curve: then the card has its own rows only.
        (120, 40, Needs(devices=0, ranks=0, card_rows=17), (17, None, False)),
        (120, 40, Needs(devices=0, ranks=0, loss=False, card_rows=13), (13, None, False)),
        (200, 50, Needs(devices=2, ranks=2, loss=False, card_rows=13), (20, None, False)),
    ],
)
def test_the_loss_stays_below_a_card(
    width: int, height: int, needs: Needs, expected: tuple[int, int | None, bool]
) -> None:
    layout = plan(width, height, needs)
    assert (layout.middle_height, layout.card_height, "loss" in layout.shown) == expected


def test_a_pane_alone() -> None:
    assert plan(80, 24, Needs(devices=2, ranks=2, zoomed="ranks")) == Layout(ALWAYS | {"ranks"})


@pytest.mark.parametrize(("height", "loss"), [(18, 0), (19, 8), (24, 8), (29, 10), (50, 18)])
def test_how_high_the_loss_is_in_one_column(height: int, loss: int) -> None:
    layout = plan(80, height, NEEDS)
    assert layout.is_narrow
    assert layout.left_height == loss
    assert layout.middle_height == loss + (layout.devices_height or 0)
    assert ("loss" in layout.shown) is bool(loss)
