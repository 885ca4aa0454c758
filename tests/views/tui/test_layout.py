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
        (80, 29, "devices loss"),
        (80, 30, "devices loss attempts tiles"),
        (99, 50, "devices loss attempts tiles"),
        (100, 24, "devices loss ranks"),
        (100, 29, "charts devices loss ranks"),
        (100, 30, "attempts charts devices loss ranks tiles"),
        (120, 40, "attempts charts devices loss ranks tiles"),
        (159, 60, "attempts charts devices loss ranks tiles"),
        (160, 36, "attempts charts devices loss ranks tiles timeline"),
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
        (80, 24, Needs(devices=8, ranks=8), (12, 4, 0, 0)),
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
        (120, 40, Needs(devices=3, ranks=2, gpus=False, trends=1), 0, (11, 1)),
        (120, 40, Needs(devices=3, ranks=2, gpus=False), 0, (0, 0)),
        (120, 26, Needs(devices=3, ranks=2, gpus=False, trends=4), 0, (0, 0)),
        # With GPUs what a run has: two rows, one row, none.
        (200, 50, Needs(devices=2, ranks=2, trends=4), 7, (14, 4)),
        (200, 50, Needs(devices=2, ranks=2, trends=3), 7, (14, 3)),
        (200, 50, Needs(devices=2, ranks=2, trends=2), 11, (10, 2)),
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


def test_beside_curves_alone_the_loss_has_the_greater_part() -> None:
    layout = plan(120, 40, Needs(devices=0, ranks=0, gpus=False, trends=4))
    assert layout.right_width == 54


def test_a_run_without_devices_and_ranks_gives_the_loss_all_of_the_width() -> None:
    assert plan(120, 40, Needs(devices=0, ranks=0)).shown == BASE | {"attempts", "tiles", "loss"}
    assert "ranks" in plan(120, 40, Needs(devices=0, ranks=1)).shown


def test_a_card_takes_the_place_of_the_charts_and_what_it_needs() -> None:
    narrow = plan(80, 24, Needs(devices=2, ranks=2, card_rows=9))
    assert narrow.shown == BASE | {"card"}
    assert narrow.middle_height == 9
    assert plan(80, 24, Needs(devices=2, ranks=2, card_rows=40)).middle_height == 24 - 4 - 7, "the log stays"
    assert plan(80, 14, Needs(devices=2, ranks=2, card_rows=40)).middle_height == 6
    roomy = plan(120, 40, Needs(devices=2, ranks=2, loss=False, card_rows=12))
    assert roomy.shown == BASE | {"card", "attempts", "tiles"}
    assert roomy.middle_height == 12
    wide = plan(160, 40, Needs(devices=2, ranks=2, card_rows=12))
    assert {"card", "devices", "ranks"} <= wide.shown


@pytest.mark.parametrize(
    ("width", "height", "needs", "expected"),
    [
        # Of a log from elsewhere: beside the card from 150 columns on, else below it; in one column the card alone.
        (200, 50, Needs(devices=0, ranks=0, card_rows=13), (20, None, True, True)),
        (150, 40, Needs(devices=0, ranks=0, card_rows=13), (20, None, True, True)),
        (149, 40, Needs(devices=0, ranks=0, card_rows=13), (22, 13, True, False)),
        (120, 40, Needs(devices=0, ranks=0, card_rows=13), (22, 13, True, False)),
        (80, 24, Needs(devices=0, ranks=0, card_rows=13), (13, None, False, False)),
        # Below it where other panes are beside the card.
        (200, 50, Needs(devices=2, ranks=2, card_rows=13), (25, 13, True, False)),
        (200, 50, Needs(devices=0, ranks=0, trends=4, card_rows=10), (22, 10, True, False)),
        # Not below six rows, and not without a curve: then the card has its own rows only.
        (120, 40, Needs(devices=0, ranks=0, card_rows=17), (17, None, False, False)),
        (120, 40, Needs(devices=0, ranks=0, loss=False, card_rows=13), (13, None, False, False)),
        (200, 50, Needs(devices=0, ranks=0, loss=False, card_rows=13), (13, None, False, False)),
        (200, 50, Needs(devices=2, ranks=2, loss=False, card_rows=13), (20, None, False, False)),
    ],
)
def test_the_loss_stays_beside_or_below_a_card(
    width: int, height: int, needs: Needs, expected: tuple[int, int | None, bool, bool]
) -> None:
    layout = plan(width, height, needs)
    assert (
        layout.middle_height,
        layout.card_height,
        "loss" in layout.shown,
        layout.loss_beside,
    ) == expected


def test_a_pane_alone() -> None:
    alone = plan(80, 24, Needs(devices=2, ranks=2, zoomed="ranks"))
    assert alone.shown == ALWAYS | {"ranks"}
    assert (alone.middle_height, alone.devices_height, alone.loss_height, alone.right_width) == (None,) * 4
    assert alone.framed_devices


@pytest.mark.parametrize(
    ("width", "more", "right"),
    [
        (100, 0, 58),
        (120, 0, 66),
        (160, 0, 72),
        (160, 10, 82),
        (160, -100, 30),
        (160, 100, 130),
    ],
)
def test_the_right_column_is_as_wide_as_a_person_made_it_within_bounds(
    width: int, more: int, right: int
) -> None:
    assert plan(width, 40, Needs(devices=2, ranks=2, side_more=more)).right_width == right


def test_a_person_gives_the_log_rows_of_the_panes_above_it_within_bounds() -> None:
    for width, height, expected in ((80, 24, [10, 8, 8, 15]), (120, 40, [22, 20, 8, 29])):
        needs = [Needs(devices=2, ranks=2, log_more=more) for more in (0, 2, 100, -100)]
        assert [plan(width, height, each).middle_height for each in needs] == expected


@pytest.mark.parametrize(
    ("height", "needs", "loss"),
    [(18, NEEDS, 0), (19, NEEDS, 8), (24, NEEDS, 8), (29, NEEDS, 10), (50, NEEDS, 18)],
)
def test_how_high_the_loss_is_in_one_column(height: int, needs: Needs, loss: int) -> None:
    layout = plan(80, height, needs)
    assert layout.loss_height == loss
    assert layout.middle_height == loss + (layout.devices_height or 0)
    assert ("loss" in layout.shown) is bool(loss)


def test_the_loss_in_one_column_gives_way_to_the_log_that_a_person_wants() -> None:
    heights = [
        plan(80, 50, Needs(devices=2, ranks=2, log_more=more)).loss_height for more in (2, 12, 99, -99)
    ]
    assert heights == [16, 6, 6, 39]
    assert plan(80, 19, Needs(devices=4, ranks=2, log_more=-99)).loss_height == 9


def test_only_a_narrow_terminal_has_one_column_and_a_line_a_device() -> None:
    for width, zoomed, vertical, framed in (
        (99, None, True, False),
        (100, None, False, True),
        (80, "ranks", False, True),
    ):
        layout = plan(width, 40, Needs(devices=2, ranks=2, zoomed=zoomed))
        assert (layout.vertical, layout.framed_devices) == (vertical, framed)
