"""Filters for each line sent to the terminal: no control codes, ASCII only (--ascii), no color (NO_COLOR)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from supervisor.views.tui.widgets.paint import plain

_PLAIN: Final = {
    "─╌┄┈": "-",
    "━═╍┅┉": "=",
    "╸╺╾╼": "=",
    "│┃║┆┇┊┋▏▎▍▌▐": "|",
    "╭╮╰╯┌┐└┘├┤┬┴┼┿╂╋┏┓┗┛┣┫┳┻╔╗╚╝": "+",
    "●◆■▰": "*",
    "○◇□▱": "o",
    "✗×✕✘": "x",
    "✓✔": "v",
    "∞": "i",
    "⚠": "!",
    "→▸▶⏵›»": ">",
    "←◂◀‹«": "<",
    "↑▲△": "^",
    "↓▼▽": "v",
    "↻↺": "@",
    "‖": "=",
    "·•": ".",
    "…": "~",
    "–—−": "-",
    "“”": '"',
    "‘’": "'",
    "°": " ",
    "▁": "_",
    "▂": ".",
    "▃": ":",
    "▄": "-",
    "▅": "=",
    "▆": "+",
    "▇": "*",
    "█▉▊▋": "#",
    "▀▔": '"',
    "▕": "|",
}
# A lone arrow becomes a comparison. An arrow between two values also replaces the spaces around it.
_LEADS_TO: Final = re.compile("(?<=[^ ←→↑↓]) → (?=[^ ←→↑↓])")
BRAILLE: Final = 0x2800


def _table() -> dict[int, str]:
    table = {ord(glyph): plain for glyphs, plain in _PLAIN.items() for glyph in glyphs}
    # The dots of a chart, by their height in the cell: ``'`` above, ``.`` below, ``:`` both.
    for bits in range(1, 256):
        upper, lower = bits & 0x1B, bits & 0xE4
        table[BRAILLE + bits] = ":" if upper and lower else "'" if upper else "."
    table[BRAILLE] = " "
    return table


TABLE: Final = _table()


class AsciiFilter(LineFilter):
    """Replaces glyphs with ASCII equivalents of the same width. Other scripts become question marks."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - textual's own signature
        """Return the line in ASCII."""
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment(ascii_of(segment.text), segment.style)
            for segment in segments
        ]


def ascii_of(text: str) -> str:
    """Convert `text` to ASCII, keeping its width."""
    text = _LEADS_TO.sub(" ->", text).translate(TABLE)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


# Differences of lightness, 0 to 1. In the three themes, glyphs with their own background differ from
# the screen's by 0.48 or more, a bar by at most 0.07. Dim text is at most 0.69 of the way from background to
# foreground, a frame 0.3, warnings at least 0.73. Errors are bold.
REVERSED_FROM: Final = 0.2
DIM_BELOW: Final = 0.72


class NoColourFilter(LineFilter):
    """Removes all colors (https://no-color.org). Bold, dim and reverse are kept.

    Args:
        foreground: the theme's foreground. Text with much less contrast to the background becomes dim.
    """

    def __init__(self, foreground: Color) -> None:
        super().__init__()
        self._foreground = foreground.brightness

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the line in the terminal's default foreground and background."""
        ground = background.brightness
        return [
            segment
            if segment.control or segment.style is None
            else Segment(segment.text, _plain(segment.style, ground, self._foreground))
            for segment in segments
        ]


@lru_cache(8)
def no_colour(foreground: str) -> NoColourFilter:
    """Return the filter for a theme's foreground. Repeated calls return the same object, which Textual's line cache needs."""
    return NoColourFilter(Color.parse(foreground))


@lru_cache(1024)
def _plain(style: Style, ground: float, foreground: float) -> Style:
    own = _lightness(style.bgcolor, ground)
    ink = _lightness(style.color, foreground)
    stands_out = abs(own - ground) >= REVERSED_FROM
    room = abs(foreground - own)
    return Style(
        bold=style.bold,
        dim=bool(style.dim) or (not (stands_out or style.bold) and abs(ink - own) < DIM_BELOW * room),
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
        reverse=bool(style.reverse) != stands_out,
        link=style.link,
        meta=style.meta or None,
    )


def _lightness(colour: RichColor | None, otherwise: float) -> float:
    return otherwise if colour is None or colour.is_default else Color.from_rich_color(colour).brightness


class HarmlessFilter(LineFilter):
    """Removes control characters from a line without changing its width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - textual's own signature
        """Return the line with terminal commands removed."""
        if all(segment.control or plain(segment.text) is segment.text for segment in segments):
            return segments
        return [
            segment if segment.control else Segment(harmless(segment.text), segment.style)
            for segment in segments
        ]


def harmless(text: str) -> str:
    """Replace terminal control characters in `text` without changing its width."""
    width = cell_len(text)
    kept = "".join(_sign(c) for c in text)
    return kept + " " * (width - cell_len(kept))


def _sign(char: str) -> str:
    if plain(char) == char:
        return char
    return "\ufffd" if cell_len(char) else ""
