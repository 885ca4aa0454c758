"""A braille canvas: two by four dots a cell, a few layers, one colour a cell (pure).

Dots follow Unicode's braille patterns block (U+2800; dot numbering of ISO/TR 11548-1).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from supervisor.views.tui.widgets.paint import Row, Span, TextStyle

# Bit of the dot at (column of two, row of four) within a braille cell.
BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLANK = 0x2800
# Bits of all dots of a column of a cell from one row to another: RUNS[column][first][last].
RUNS = tuple(
    tuple(tuple(sum(bits[first : last + 1]) for last in range(4)) for first in range(4)) for bits in BITS
)
_EMPTY = (" ", TextStyle.PLAIN)


class Canvas:
    """`columns` by `rows` cells. Later layers win a cell, as marks win over dots: one thin line stays thin."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._layers: list[tuple[TextStyle, dict[int, int]]] = []
        self._marks: dict[int, tuple[str, TextStyle]] = {}
        self._under: dict[int, tuple[str, TextStyle]] = {}

    @property
    def dot_columns(self) -> int:
        """Width in dots."""
        return 2 * self.columns

    @property
    def dot_rows(self) -> int:
        """Height in dots."""
        return 4 * self.rows

    def layer(self, style: TextStyle, *, below: bool = False) -> dict[int, int]:
        """A new layer above the others, or below all of them: cell index to dot bits."""
        cells: dict[int, int] = {}
        self._layers.insert(0 if below else len(self._layers), (style, cells))
        return cells

    def span(self, layer: dict[int, int], x: int, y0: int, y1: int) -> None:
        """Dots of column `x` from `y0` to `y1` (from the top), both included; what lies outside is clipped."""
        if not 0 <= x < self.dot_columns:
            return
        low, high = (y0, y1) if y0 <= y1 else (y1, y0)
        low, high = max(low, 0), min(high, self.dot_rows - 1)
        if low > high:
            return
        runs, columns = RUNS[x & 1], self.columns
        cell, last = (low >> 2) * columns + (x >> 1), (high >> 2) * columns + (x >> 1)
        if cell == last:
            layer[cell] = layer.get(cell, 0) | runs[low & 3][high & 3]
            return
        layer[cell] = layer.get(cell, 0) | runs[low & 3][3]
        for between in range(cell + columns, last, columns):
            layer[between] = layer.get(between, 0) | runs[0][3]
        layer[last] = layer.get(last, 0) | runs[0][high & 3]

    def line(self, layer: dict[int, int], x0: int, y0: int, x1: int, y1: int) -> None:
        """A line of dots without gaps."""
        if x1 <= x0:
            self.span(layer, x0, y0, y1)
            return
        before = y0
        for x in range(x0, x1 + 1):
            y = y0 + round((y1 - y0) * (x - x0) / (x1 - x0))
            # Begin one dot from the last column's end, so that a steep line has no doubled corners.
            start = before if abs(y - before) <= 1 else before + (1 if y > before else -1)
            self.span(layer, x, y if abs(y - before) <= 1 else start, y)
            before = y

    def mark(self, column: int, row: int, character: str, style: TextStyle) -> None:
        """A character over whatever is drawn in a cell."""
        if 0 <= column < self.columns and 0 <= row < self.rows:
            self._marks[row * self.columns + column] = (character, style)

    def is_free(self, column: int, row: int) -> bool:
        """Whether a cell is on the canvas and has no mark yet."""
        inside = 0 <= column < self.columns and 0 <= row < self.rows
        return inside and row * self.columns + column not in self._marks

    def rule(self, column: int, character: str, style: TextStyle) -> None:
        """A vertical rule behind what is drawn."""
        if 0 <= column < self.columns:
            for row in range(self.rows):
                self._under[row * self.columns + column] = (character, style)

    def drawn(self) -> list[Row]:
        """The rows of cells, from the top; adjacent cells of one colour are one span."""
        shown = dict(self._under)
        for style, cells in self._layers:
            shown |= {cell: (chr(BLANK + bits), style) for cell, bits in cells.items() if bits}
        shown |= self._marks
        columns = self.columns
        return [
            row_of([shown.get(cell, _EMPTY) for cell in range(start, start + columns)])
            for start in range(0, self.rows * columns, columns)
        ]


def row_of(cells: Iterable[tuple[str, TextStyle]]) -> Row:
    """Cells in one style side by side as one span."""
    return tuple(
        Span("".join([character for character, _ in run]), style)
        for style, run in groupby(cells, itemgetter(1))
    )
