"""Which panes are shown and how high they are, for a size of terminal (pure).

What gives way, in this order, as the terminal gets smaller: trends, timeline, charts of use, tiles, attempts, ranks,
devices beyond four, the loss chart. Header, log, notice and footer stay.
"""

from __future__ import annotations

import msgspec

NARROW = 100
WIDE = 160
LOW = 30
CHARTS_LEAST = 6
RANKS_LEAST = 5
# Charts go in two rows if each row gets at least this many lines.
TRENDS_LEAST = 8
# Beside the devices, charts and ranks of a wide terminal a card is not lower than this.
CARD_BESIDE_RIGHT = 20
ALWAYS = frozenset(["header", "notice", "footer"])


class Layout(msgspec.Struct, frozen=True):
    """`shown`: ids of panes. Heights in rows; None: what is left. `right_width` None: all of the width."""

    shown: frozenset[str]
    vertical: bool
    framed_devices: bool
    middle_height: int | None
    devices_height: int | None
    charts_height: int
    loss_height: int | None
    right_width: int | None
    timeline_width: int
    trends_height: int = 0


class Needs(msgspec.Struct, frozen=True):
    """What the layout depends on besides the size, in rows. `card_rows` 0: no failure card is shown.

    `log_more`: rows that a person gave the log beyond its share; `side_more`: cells of the right column.
    """

    devices: int
    ranks: int
    card_rows: int = 0
    zoomed: str | None = None
    log_more: int = 0
    side_more: int = 0


def plan(width: int, height: int, needs: Needs) -> Layout:
    """The layout for a terminal of `width` by `height` cells."""
    if needs.zoomed is not None:
        return _zoomed(needs.zoomed)
    return _narrow(height, needs) if width < NARROW else _roomy(width, height, needs)


def _zoomed(pane: str) -> Layout:
    return Layout(
        shown=ALWAYS | {pane},
        vertical=False,
        framed_devices=True,
        middle_height=None,
        devices_height=None,
        charts_height=0,
        loss_height=None,
        right_width=None,
        timeline_width=0,
    )


def _narrow(height: int, needs: Needs) -> Layout:
    """One column: loss, a line a device, the log."""
    room = height - 4
    shown = set(ALWAYS | {"log"})
    devices = min(needs.devices, 4 if height >= 20 else 1)
    loss = 0
    if needs.card_rows:
        middle = min(max(room - 7, 6), needs.card_rows)
        shown.add("card")
    else:
        loss = max(8, room * 2 // 5) if room >= 15 else 0
        if devices:
            shown.add("devices")
        if loss:
            shown.add("loss")
        loss = min(max(loss - needs.log_more, 6), max(room - devices - 5, 6)) if loss else 0
        middle = loss + devices
    if height >= LOW:
        shown |= {"attempts", "tiles"}
    return Layout(
        shown=frozenset(shown),
        vertical=True,
        framed_devices=False,
        middle_height=middle,
        devices_height=devices,
        charts_height=0,
        loss_height=loss,
        right_width=None,
        timeline_width=0,
    )


def _roomy(width: int, height: int, needs: Needs) -> Layout:
    """Two columns above the log."""
    shown = set(ALWAYS | {"log"})
    room = height - 4
    if height >= LOW:
        shown |= {"attempts", "tiles"}
        room -= 2
    wide = width >= WIDE
    if wide:
        shown.add("timeline")
    middle = max(room - max(7, room * 36 // 100), 8)
    middle = min(max(middle - needs.log_more, 8), max(room - 5, 8))
    if needs.card_rows:
        shown.add("card")
        middle = min(max(room - 8, 8), max(needs.card_rows, CARD_BESIDE_RIGHT if wide else 8))
    else:
        shown.add("loss")
    devices = _devices_height(middle, needs.devices) if needs.devices else 0
    charts = trends = 0
    if needs.devices + needs.ranks and (wide or not needs.card_rows):
        if needs.ranks and middle - devices >= RANKS_LEAST:
            shown.add("ranks")
        if needs.devices:
            shown.add("devices")
            charts = _charts_height(middle - devices, needs.ranks + 3)
        if charts:
            shown.add("charts")
        spare = middle - devices - max(needs.ranks + 3, RANKS_LEAST)
        if wide and charts and spare >= 2 * TRENDS_LEAST:
            shown.add("trends")
            trends = spare // 2
            charts = spare - trends
    return Layout(
        shown=frozenset(shown),
        vertical=False,
        framed_devices=True,
        middle_height=middle,
        devices_height=devices,
        charts_height=charts,
        loss_height=None,
        right_width=_right_width(width, needs.side_more),
        timeline_width=min(72, width * 36 // 100),
        trends_height=trends,
    )


def _right_width(width: int, more: int) -> int:
    usual = min(max(66, width * 45 // 100), width * 58 // 100)
    return min(max(usual + more, 30), width - 30)


def _devices_height(middle: int, devices: int) -> int:
    return max(3, min(devices + 2, middle - CHARTS_LEAST - RANKS_LEAST, 10))


def _charts_height(room: int, ranks: int) -> int:
    """What the ranks table does not need, but at most seven tenths; 0 where that is too low for a chart."""
    if room < CHARTS_LEAST + RANKS_LEAST:
        return 0
    return max(CHARTS_LEAST, min(room - max(ranks, RANKS_LEAST), room * 7 // 10))
