"""Everything on the screen without a glyph beyond ASCII: the last thing that happens to a line."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

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
# Alone an arrow becomes a comparison; between two values it has the blanks' cells too. Keys stand beside each other.
_LEADS_TO: Final = re.compile("(?<=[^ ←→↑↓]) → (?=[^ ←→↑↓])")
BRAILLE: Final = 0x2800


def _table() -> dict[int, str]:
    table = {ord(glyph): plain for glyphs, plain in _PLAIN.items() for glyph in glyphs}
    for bits in range(1, 256):
        # Rows of a cell, from the top; the two columns of a row count as one.
        rows = [bool(bits & mask) for mask in (0x09, 0x12, 0x24, 0xC0)]
        table[BRAILLE + bits] = _dots(rows)
    table[BRAILLE] = " "
    return table


def _dots(rows: list[bool]) -> str:
    upper, lower = rows[0] or rows[1], rows[2] or rows[3]
    if sum(rows) >= 3:
        return "|"
    if upper and lower:
        return "-" if rows[1] and rows[2] else ":"
    return "'" if upper else "."


TABLE: Final = _table()


class AsciiFilter(LineFilter):
    """Puts a plain sign of the same width in place of each glyph; text in other scripts becomes question marks."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - textual's own signature
        """The line in ASCII."""
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment(plain(segment.text), segment.style)
            for segment in segments
        ]


def plain(text: str) -> str:
    """`text` in ASCII, as wide as before."""
    text = _LEADS_TO.sub(" ->", text).translate(TABLE)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)
