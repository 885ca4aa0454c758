"""A screen without any colour, for NO_COLOR: what colours told is told by bold, dim and reversed characters."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

# Differences of lightness, 0 to 1. Of the three themes' signs those on a ground of their own are 0.48 or more from the
# background, a bar 0.07 at most; dim text is 0.69 of the way from the background to the foreground at most, a frame 0.3,
# what warns 0.73 at least, what is bad is bold.
REVERSED_FROM: Final = 0.2
DIM_BELOW: Final = 0.72


class NoColourFilter(LineFilter):
    """Takes every colour out of a line (https://no-color.org asks for that) and keeps what it meant.

    Args:
        foreground: the theme's own; text that is much nearer to the background is dim.
    """

    def __init__(self, foreground: Color) -> None:
        super().__init__()
        self._foreground = foreground.brightness

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The line in the terminal's own two colours."""
        ground = background.brightness
        return [
            segment
            if segment.control or segment.style is None
            else Segment(segment.text, _plain(segment.style, ground, self._foreground))
            for segment in segments
        ]


@lru_cache(8)
def no_colour(foreground: str) -> NoColourFilter:
    """The filter of a theme by its foreground; always the same one, as Textual keeps lines by their filters."""
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
