"""Which panes are shown and how high they are, for a size of terminal (pure).

What gives way, in this order, as the terminal gets smaller: timeline, charts of use, tiles, attempts, ranks,
devices beyond four, the loss chart. Header, log, notice and footer stay.
"""

from __future__ import annotations

from dataclasses import dataclass

NARROW = 100
WIDE = 160
LOW = 30
USE_HEIGHT = 7
CARD_HEIGHT = 20
ALWAYS = frozenset(["header", "notice", "footer"])
RIGHT = frozenset(["charts", "devices", "ranks"])


@dataclass(frozen=True, slots=True)
class Layout:
    """`shown`: ids of panes. Heights in rows; None: what is left. `right_width` None: all of the width."""

    shown: frozenset[str]
    vertical: bool
    framed_devices: bool
    middle_height: int | None
    devices_height: int | None
    loss_height: int | None
    right_width: int | None
    timeline_width: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What the layout depends on besides the size."""

    devices: int
    card: bool
    zoomed: str | None = None


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
    if needs.card:
        middle = min(max(room - 7, 6), CARD_HEIGHT - 3)
        shown.add("card")
    else:
        loss = max(8, room * 2 // 5) if room >= 15 else 0
        shown.add("devices")
        if loss:
            shown.add("loss")
        middle = loss + devices
    if height >= LOW:
        shown |= {"attempts", "tiles"}
    return Layout(
        shown=frozenset(shown),
        vertical=True,
        framed_devices=False,
        middle_height=middle,
        devices_height=devices,
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
    if needs.card:
        shown.add("card")
        if not wide:
            middle = min(max(room - 8, 8), CARD_HEIGHT)
    else:
        shown.add("loss")
    if wide or not needs.card:
        shown |= _right(middle, needs.devices)
    right = max(62, width * 45 // 100) if not needs.card else width * 45 // 100
    return Layout(
        shown=frozenset(shown),
        vertical=False,
        framed_devices=True,
        middle_height=middle,
        devices_height=_devices_height(middle, needs.devices, charts="charts" in shown),
        loss_height=None,
        right_width=right,
        timeline_width=min(72, width * 36 // 100),
    )


def _right(middle: int, devices: int) -> set[str]:
    shown = {"devices"}
    left = middle - _devices_height(middle, devices, charts=False)
    if left >= 4:
        shown.add("ranks")
    if left >= 4 + USE_HEIGHT:
        shown.add("charts")
    return shown


def _devices_height(middle: int, devices: int, *, charts: bool) -> int:
    most = middle - (USE_HEIGHT + 4 if charts else 4)
    return max(3, min(devices + 2, most, 10))
