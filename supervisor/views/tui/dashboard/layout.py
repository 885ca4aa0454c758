"""Which panes are shown and how high they are, for a size of terminal (pure).

What gives way, in this order, as the terminal gets smaller: trends, timeline, charts of use, tiles, attempts, ranks,
devices beyond four, the loss chart. Header, log, notice and footer stay. Without a GPU the trends have the place of the
charts of use: how busy the machine is, is one line. A failure card takes only its own rows; the loss chart stays beside
or below it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

NARROW = 100
WIDE = 160
LOW = 30
LOG_LEAST = 3
# In fewer rows a frame would take half of what is shown.
FRAMED_FROM = 7
CHARTS_LEAST = 6
RANKS_LEAST = 5
# A row of two curves beside the loss has at least this many lines; there are at most two such rows.
TRENDS_LEAST = 7
TRENDS_MOST = 4
# Beside other panes a card is not lower than this.
CARD_BESIDE_RIGHT = 20
# From this width on the loss chart is beside the card unless other panes are, else below it with at most so many rows.
LOSS_BESIDE_FROM = 150
LOSS_BELOW_MOST = 12
ALWAYS = frozenset(["header", "notice", "footer"])


class Layout(msgspec.Struct, frozen=True):
    """`shown`: ids of panes. Heights in rows; None: what is left. `right_width` None: all of the width.

    `framed`: whether log and failure card have room for a frame; `framed_devices`: the devices.
    `trends`: how many curves there is room for; `trends_height`: of all of them.
    `loss_beside`: of the card, as wide as the right column would be; else below a card of `card_height`.
    """

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
    trends: int = 0
    framed: bool = True
    card_height: int | None = None
    loss_beside: bool = False


class Needs(msgspec.Struct, frozen=True):
    """What the layout depends on besides the size, in rows. `card_rows` 0: no failure card is shown.

    `gpus`: whether the devices are some. `loss`: whether the loss has a curve. `trends`: how many other series have one.
    `log_more`: rows that a person gave the log beyond its share; `side_more`: cells of the right column.
    """

    devices: int
    ranks: int
    gpus: bool = True
    loss: bool = True
    trends: int = 0
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
        middle = min(max(room - 7, 6), needs.card_rows, room)
        if room - middle < LOG_LEAST:
            middle = room  # a log without a line is none
            shown.remove("log")
        shown.add("card")
    else:
        loss = max(8, room * 2 // 5) if room >= 15 else 0
        devices = devices if room - devices >= LOG_LEAST else 0
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
        framed=room >= FRAMED_FROM,
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
    middle = max(room - max(7, room * (33 if wide else 36) // 100), 8)
    middle = min(max(middle - needs.log_more, 8), max(room - 5, 8))
    card_height, beside = None, False
    if needs.card_rows:
        shown.add("card")
        beside = needs.loss and width >= LOSS_BESIDE_FROM and not _has_right(width, needs)
        in_full = max(needs.card_rows, 8 if card_width(width, needs) == width else CARD_BESIDE_RIGHT)
        below = min(max(needs.card_rows + LOSS_BELOW_MOST, in_full), middle) - needs.card_rows
        middle = min(max(room - 8, 8), in_full)
        if needs.loss and not beside and below >= CHARTS_LEAST:
            card_height, middle = needs.card_rows, needs.card_rows + below
        if beside or card_height:
            shown.add("loss")
    else:
        shown.add("loss")
    devices = _devices_height(middle, needs.devices) if needs.devices else 0
    curves = Curves()
    if _has_right(width, needs) or (needs.devices + needs.ranks + needs.trends and not needs.card_rows):
        if needs.ranks and middle - devices >= RANKS_LEAST:
            shown.add("ranks")
        if needs.devices:
            shown.add("devices")
        curves = _curves(middle - devices, needs, wide=wide)
        if curves.use_height:
            shown.add("charts")
        if curves.trends:
            shown.add("trends")
    return Layout(
        shown=frozenset(shown),
        vertical=False,
        framed_devices=True,
        middle_height=middle,
        devices_height=devices,
        charts_height=curves.use_height,
        loss_height=None,
        right_width=_right_width(width, needs),
        timeline_width=min(72, width * 36 // 100),
        trends_height=curves.trends_height,
        trends=curves.trends,
        card_height=card_height,
        loss_beside=beside,
    )


def card_width(width: int, needs: Needs) -> int:
    """Of a failure card in a terminal of this width."""
    if width >= LOSS_BESIDE_FROM and (needs.loss or _has_right(width, needs)):
        return width - _right_width(width, needs)
    return width


def _has_right(width: int, needs: Needs) -> bool:
    """Whether a column of other panes is beside a failure card."""
    return width >= WIDE and (_has_table(needs) or needs.trends > 1)


def _right_width(width: int, needs: Needs) -> int:
    usual = width * 45 // 100
    if _has_table(needs):
        usual = min(max(66, usual), width * 58 // 100)
    return min(max(usual + needs.side_more, 30), width - 30)


def _devices_height(middle: int, devices: int) -> int:
    return max(3, min(devices + 2, middle - CHARTS_LEAST - RANKS_LEAST, 10))


class Curves(NamedTuple):
    """The curves above the devices: of how busy they are, and of how many series."""

    use_height: int = 0
    trends_height: int = 0
    trends: int = 0


def _curves(room: int, needs: Needs, *, wide: bool) -> Curves:
    """In what the ranks table does not need; one row alone has at most seven tenths. None where that is too low for a chart."""
    below = max(needs.ranks + 3, RANKS_LEAST) if needs.ranks else 0
    if room < CHARTS_LEAST + min(below, RANKS_LEAST):
        return Curves()
    use = needs.gpus and needs.devices > 0
    spare = max(CHARTS_LEAST, room - below)
    wanted = min(needs.trends, TRENDS_MOST) if wide or not use else 0
    if wanted == 1 and not _has_table(needs):
        return Curves()  # the loss would lose half of its width to it
    rows = min(-(-wanted // 2), (spare - use * CHARTS_LEAST) // TRENDS_LEAST)
    if rows + use == 0:
        return Curves()
    if rows + use == 1 and below:
        spare = max(CHARTS_LEAST, min(spare, room * 7 // 10))
    trends_height = spare * rows // (rows + use)
    return Curves(spare - trends_height if use else 0, trends_height, min(wanted, 2 * rows))


def _has_table(needs: Needs) -> bool:
    """Whether anything but curves is beside the loss."""
    return needs.devices + needs.ranks > 0
