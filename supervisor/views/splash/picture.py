"""A first picture of the dashboard, made without the library that draws it (pure).

What is known at once stands where the app will put it, in the theme's colours: the two lines at the top, the frames of
the panes, the newest log lines. The app's first frame paints over it, and nothing moves.
"""

from __future__ import annotations

import colorsys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from supervisor.views.palette import Palette
from supervisor.views.tui.dashboard.layout import Layout, Needs, plan

# Rows of the header above the panes, and of the lines below them; the frame of a pane, and who said a line.
HEADER_ROWS = 2
LEGS_ROWS = 2
FRAME = 1
WHO_CELLS = 10
_ASCII: Final = str.maketrans("╭╮╰╯─│·○✓…", "++++-|.ov~")


class Depth(IntEnum):
    """How many colours a terminal has, as far as it says so."""

    NONE = 0
    PALETTE = 256
    TRUE = 1 << 24


def depth_of(env: Mapping[str, str]) -> Depth:
    """What the library of the app finds too. Of sixteen colours none is one of ours: then none is used."""
    if "NO_COLOR" in env:
        return Depth.NONE
    if env.get("COLORTERM", "").strip().lower() in {"truecolor", "24bit"}:
        return Depth.TRUE
    term = env.get("TERM", "").strip().lower()
    return Depth.PALETTE if term.endswith("-256color") or "kitty" in term else Depth.NONE


class Look(NamedTuple):
    """How it is painted. `plain_ascii`: no glyph beyond ASCII."""

    palette: Palette
    depth: Depth
    plain_ascii: bool = False

    def ground(self) -> str:
        """The sequence after which all is on the theme's background."""
        return "\x1b[0m" + self._sgr(48, self.palette.background) + self._sgr(38, self.palette.foreground)

    def style(self, colour: str, *, bold: bool = False) -> str:
        """The sequence that begins text in a colour."""
        return self._sgr(38, colour) + ("\x1b[1m" if bold else "\x1b[22m") * (self.depth > Depth.NONE)

    def encode(self, text: str) -> bytes:
        """What goes to the terminal."""
        if self.plain_ascii:
            return text.translate(_ASCII).encode("ascii", "replace")
        return text.encode("utf-8", "replace")

    def _sgr(self, what: int, colour: str) -> str:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        match self.depth:
            case Depth.TRUE:
                return f"\x1b[{what};2;{red};{green};{blue}m"
            case Depth.PALETTE:
                return f"\x1b[{what};5;{_indexed(red, green, blue)}m"
            case Depth.NONE:
                return ""


def _indexed(red: int, green: int, blue: int) -> int:
    """The nearest of xterm's 256 colours, found as Rich does (rich/color.py), so that the app's own is the same."""
    _, light, saturation = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
    if saturation < 0.15:
        grey = round(light * 25)
        return 16 if grey == 0 else 231 if grey == 25 else 231 + grey
    steps = [round(c / 95 if c < 95 else 1 + (c - 95) / 40) for c in (red, green, blue)]
    return 16 + 36 * steps[0] + 6 * steps[1] + steps[2]


class Said(NamedTuple):
    """A piece of a line: its text, the name of its colour in the palette."""

    text: str
    colour: str = "foreground"
    bold: bool = False


class Scene(NamedTuple):
    """What is known. `needs` None: where the panes will be is not, so the newest lines stand alone.

    `indent`: cells between them and the frame.
    `alone`: the title of a pane that has all but the line of keys; there is nothing else then.
    """

    header: tuple[Sequence[Said], ...] = ()
    lines: Sequence[str] = ()
    indent: int = WHO_CELLS
    needs: Needs | None = None
    alone: str = ""


class Box(NamedTuple):
    """The frame of a pane, in cells from the upper left corner of the terminal."""

    top: int
    left: int
    width: int
    height: int


def boxes(layout: Layout, width: int, height: int) -> Iterator[Box]:
    """The frames of the panes that a layout shows, the log's first."""
    middle = layout.middle_height or 0
    log_top = HEADER_ROWS + middle + len(layout.shown & {"attempts", "tiles"})
    log_height = height - log_top - LEGS_ROWS
    log_width = width - (layout.timeline_width if "timeline" in layout.shown else 0)
    yield Box(log_top, 0, log_width, log_height)
    if "timeline" in layout.shown:
        yield Box(log_top, log_width, width - log_width, log_height)
    if layout.vertical:
        if layout.loss_height:
            yield Box(HEADER_ROWS, 0, width, layout.loss_height)
        return
    right = layout.right_width or 0 if layout.shown & {"charts", "devices", "ranks"} else 0
    if layout.shown & {"loss", "card"}:
        yield Box(HEADER_ROWS, 0, width - right, middle)
    if right:
        yield from _right(layout, width - right, right, middle)


def _right(layout: Layout, left: int, width: int, height: int) -> Iterator[Box]:
    top, end = HEADER_ROWS, HEADER_ROWS + height
    if "charts" in layout.shown:
        half = width // 2
        yield Box(top, left, half, layout.charts_height)
        yield Box(top, left + half, width - half, layout.charts_height)
        top += layout.charts_height
    if "trends" in layout.shown:
        half = width // 2
        yield Box(top, left, half, layout.trends_height)
        yield Box(top, left + half, width - half, layout.trends_height)
        top += layout.trends_height
    if "devices" in layout.shown:
        devices = layout.devices_height or 0
        yield Box(top, left, width, devices)
        top += devices
    if "ranks" in layout.shown:
        yield Box(top, left, width, end - top)


def paint(scene: Scene, look: Look, width: int, height: int) -> str:
    """The sequences that put it on a terminal whose lines do not wrap; nothing where there is no room for a line."""
    if scene.alone:
        return _alone(scene.alone, look, width, height)
    layout = plan(width, height, scene.needs or Needs(devices=0, ranks=0))
    frames = list(boxes(layout, width, height))
    log = frames[0]
    rows = log.height - 2 * FRAME
    if rows < 1 or log.width < 2 * FRAME + 1:
        return ""
    parts = [look.ground()]
    for row, pieces in enumerate(scene.header[:HEADER_ROWS]):
        parts.append(f"\x1b[{row + 1};1H\x1b[K")
        parts += [
            look.style(getattr(look.palette, text.colour), bold=text.bold) + _harmless(text.text)
            for text in pieces
        ]
    parts.append(look.style(look.palette.foreground))
    left, room = log.left + FRAME + scene.indent, log.width - 2 * FRAME - scene.indent
    if room > 0:
        for row, line in enumerate(scene.lines[-rows:], start=log.top + FRAME):
            parts.append(f"\x1b[{row + 1};{left + 1}H\x1b[{room}X{_cut(_harmless(line.expandtabs(4)), room)}")
    if scene.needs is not None:
        parts += [
            _frame(box, look, look.palette.faint if number else look.palette.live)
            for number, box in enumerate(frames)
            if box.width > 3 and box.height > 2
        ]
    return "".join(parts)


def _harmless(text: str) -> str:
    """The last gate: only characters pass, no commands."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def _cut(text: str, cells: int) -> str:
    """As much of it as has room; a character of East Asian scripts takes two cells."""
    if text.isascii():
        return text[:cells]
    used = 0
    for index, char in enumerate(text):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used > cells:
            return text[:index]
    return text


def _alone(title: str, look: Look, width: int, height: int) -> str:
    """One pane with its title. The list of runs has one line below it."""
    box = Box(0, 0, width, height - 1)
    if box.width <= 2 * len(title) + 6 or box.height < 3:
        return ""
    frame = _frame(box, look, look.palette.live)
    named = look.style(look.palette.strong, bold=True) + _harmless(title) + look.style(look.palette.live)
    return f"{look.ground()}{frame}\x1b[1;2H {named} "


def _frame(box: Box, look: Look, colour: str) -> str:
    line = "─" * (box.width - 2)
    parts = [look.style(colour), f"\x1b[{box.top + 1};{box.left + 1}H╭{line}╮"]
    rows = range(box.top + 2, box.top + box.height)
    parts += [f"\x1b[{row};{box.left + 1}H│\x1b[{row};{box.left + box.width}H│" for row in rows]
    parts.append(f"\x1b[{box.top + box.height};{box.left + 1}H╰{line}╯")
    return "".join(parts)
