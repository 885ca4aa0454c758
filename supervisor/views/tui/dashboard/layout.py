"""Chooses the panes to show and their heights for a terminal size (pure).

There are two layouts. A narrow terminal has one column: the loss or the failure card, a line per device, the log. A wide one has
two columns above the log. As the terminal gets smaller, these are dropped in order: trends, timeline, charts of use, tiles,
attempts, ranks, devices beyond four, the loss chart. Header, log, notice and footer stay. A failure card takes only its own rows.
"""

from __future__ import annotations

import msgspec

WIDE_FROM = 100
# From this width on the timeline is beside the log, and a failure card beside the other panes.
ROOMY_FROM = 150
LOW = 30
LOG_LEAST = 3
# With fewer rows a frame would take half of the content.
FRAMED_FROM = 7
CHARTS_LEAST = 6
RANKS_LEAST = 5
# A row of two curves beside the loss has at least this many lines; there are at most two such rows.
TRENDS_LEAST = 7
TRENDS_MOST = 4
# Beside other panes a card is at least this high.
CARD_BESIDE_RIGHT = 20
LOSS_BELOW_MOST = 12
ALWAYS = frozenset(["header", "notice", "footer"])


class Layout(msgspec.Struct, frozen=True):
    """`shown`: ids of panes. Heights in rows; None: the rest. `right_width` None: the full width.

    `left_height`: height of the loss or card above the devices of a narrow terminal; `card_height`: of a card
    with the loss below it. `trends`: how many curves fit; `trends_height`: of all of them. `is_framed`:
    whether log and failure card have room for a frame.
    """

    shown: frozenset[str]
    is_narrow: bool = False
    middle_height: int | None = None
    left_height: int | None = None
    card_height: int | None = None
    devices_height: int | None = None
    charts_height: int = 0
    trends_height: int = 0
    trends: int = 0
    right_width: int | None = None
    timeline_width: int = 0
    is_framed: bool = True


class Needs(msgspec.Struct, frozen=True):
    """The inputs of the layout besides the size, in rows. `card_rows` 0: no failure card.

    `gpus`: whether the devices are GPUs. `loss`: whether the loss has a curve. `trends`: how many other series have one.
    """

    devices: int
    ranks: int
    gpus: bool = True
    loss: bool = True
    trends: int = 0
    card_rows: int = 0
    zoomed: str | None = None

    @property
    def has_table(self) -> bool:
        """Whether anything but curves is beside the loss."""
        return self.devices + self.ranks > 0


def plan(width: int, height: int, needs: Needs) -> Layout:
    """The layout for a terminal of `width` by `height` cells."""
    if needs.zoomed is not None:
        return Layout(ALWAYS | {needs.zoomed})
    return _narrow(height, needs) if width < WIDE_FROM else _wide(width, height, needs)


def _narrow(height: int, needs: Needs) -> Layout:
    """One column."""
    room = height - 4
    shown = set(ALWAYS | {"log"} | ({"attempts", "tiles"} if height >= LOW else set()))
    devices = left = 0
    if needs.card_rows:
        left = min(max(room - 7, 6), needs.card_rows, room)
        if room - left < LOG_LEAST:
            left = room  # a log needs at least one line
            shown.remove("log")
        shown.add("card")
    else:
        devices = min(needs.devices, 4 if height >= 20 else 1)
        devices = devices if room - devices >= LOG_LEAST else 0
        if room >= 15:
            left = min(max(8, room * 2 // 5), max(room - devices - 5, 6))
        shown |= ({"loss"} if left else set()) | ({"devices"} if devices else set())
    return Layout(
        frozenset(shown),
        is_narrow=True,
        middle_height=left + devices,
        left_height=left,
        devices_height=devices,
        is_framed=room >= FRAMED_FROM,
    )


def _wide(width: int, height: int, needs: Needs) -> Layout:
    """Two columns above the log."""
    room = height - (6 if height >= LOW else 4)
    is_roomy = width >= ROOMY_FROM
    shown = set(ALWAYS | {"log"} | ({"attempts", "tiles"} if height >= LOW else set()))
    shown |= {"timeline"} if is_roomy else set()
    middle = max(room - max(7, room * (33 if is_roomy else 36) // 100), 8)
    has_right = bool(needs.devices + needs.ranks + needs.trends)
    card_height = None
    if needs.card_rows:
        shown.add("card")
        has_right = _is_beside_card(width, needs)
        whole = max(needs.card_rows, CARD_BESIDE_RIGHT if has_right else 8)
        below = min(max(needs.card_rows + LOSS_BELOW_MOST, whole), middle) - needs.card_rows
        middle = min(max(room - 8, 8), whole)
        if needs.loss and below >= CHARTS_LEAST:
            card_height, middle = needs.card_rows, needs.card_rows + below
            shown.add("loss")
    else:
        shown.add("loss")
    devices, charts, curves, count = 0, 0, 0, 0
    if has_right:
        if needs.devices:
            devices = max(3, min(needs.devices + 2, middle - CHARTS_LEAST - RANKS_LEAST, 10))
            shown.add("devices")
        if needs.ranks and middle - devices >= RANKS_LEAST:
            shown.add("ranks")
        charts, curves, count = _curves(middle - devices, needs, is_roomy=is_roomy)
        shown |= ({"charts"} if charts else set()) | ({"trends"} if count else set())
    return Layout(
        frozenset(shown),
        middle_height=middle,
        card_height=card_height,
        devices_height=devices,
        charts_height=charts,
        trends_height=curves,
        trends=count,
        right_width=_right_width(width, needs),
        timeline_width=min(72, width * 36 // 100),
    )


def card_width(width: int, needs: Needs) -> int:
    """The width of a failure card in a terminal of this width."""
    return width - _right_width(width, needs) if _is_beside_card(width, needs) else width


def _is_beside_card(width: int, needs: Needs) -> bool:
    """Whether a column of other panes is beside a failure card."""
    return width >= ROOMY_FROM and (needs.has_table or needs.trends > 1)


def _right_width(width: int, needs: Needs) -> int:
    usual = width * 45 // 100
    return min(max(66, usual), width * 58 // 100) if needs.has_table else usual


def _curves(room: int, needs: Needs, *, is_roomy: bool) -> tuple[int, int, int]:
    """The curves above the devices: rows of the usage charts, rows of the trends, and how many trends.

    They get the rows that the ranks table does not need; a single row gets at most seven tenths of them.
    """
    below = max(needs.ranks + 3, RANKS_LEAST) if needs.ranks else 0
    if room < CHARTS_LEAST + min(below, RANKS_LEAST):
        return 0, 0, 0
    use = int(needs.gpus and needs.devices > 0)
    spare = max(CHARTS_LEAST, room - below)
    wanted = min(needs.trends, TRENDS_MOST) if is_roomy or not use else 0
    if wanted == 1 and not needs.has_table:
        wanted = 0  # the loss would lose half of its width to it
    rows = min(-(-wanted // 2), (spare - use * CHARTS_LEAST) // TRENDS_LEAST)
    if rows + use == 0:
        return 0, 0, 0
    if rows + use == 1 and below:
        spare = max(CHARTS_LEAST, min(spare, room * 7 // 10))
    height = spare * rows // (rows + use)
    return (spare - height if use else 0), height, min(wanted, 2 * rows)
