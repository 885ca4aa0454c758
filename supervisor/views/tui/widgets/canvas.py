"""A braille canvas: two by four dots a cell, a few layers, one ink a cell (pure).

Dots follow Unicode's braille patterns block (U+2800; dot numbering of ISO/TR 11548-1).
"""

from __future__ import annotations

from supervisor.views.tui.widgets.paint import Ink, Row, Span

# Bit of the dot at (column of two, row of four) within a braille cell.
BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLANK = 0x2800


class Canvas:
    """`columns` by `rows` cells. Later layers win a cell, as marks win over dots: one thin line stays thin."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._layers: list[tuple[Ink, dict[int, int]]] = []
        self._marks: dict[int, tuple[str, Ink]] = {}
        self._under: dict[int, tuple[str, Ink]] = {}

    @property
    def dot_columns(self) -> int:
        """Width in dots."""
        return 2 * self.columns

    @property
    def dot_rows(self) -> int:
        """Height in dots."""
        return 4 * self.rows

    def layer(self, ink: Ink) -> dict[int, int]:
        """A new layer above the others: cell index to dot bits."""
        cells: dict[int, int] = {}
        self._layers.append((ink, cells))
        return cells

    def span(self, layer: dict[int, int], x: int, y0: int, y1: int) -> None:
        """Dots of column `x` from `y0` to `y1` (from the top), both included; what lies outside is clipped."""
        if not 0 <= x < self.dot_columns:
            return
        low, high = (y0, y1) if y0 <= y1 else (y1, y0)
        column, bits = x >> 1, BITS[x & 1]
        for y in range(max(low, 0), min(high, self.dot_rows - 1) + 1):
            cell = (y >> 2) * self.columns + column
            layer[cell] = layer.get(cell, 0) | bits[y & 3]

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

    def mark(self, column: int, row: int, character: str, ink: Ink) -> None:
        """A character over whatever is drawn in a cell."""
        if 0 <= column < self.columns and 0 <= row < self.rows:
            self._marks[row * self.columns + column] = (character, ink)

    def rule(self, column: int, character: str, ink: Ink) -> None:
        """A vertical rule behind what is drawn."""
        if 0 <= column < self.columns:
            for row in range(self.rows):
                self._under[row * self.columns + column] = (character, ink)

    def under(self, column: int, row: int, character: str, ink: Ink) -> None:
        """A character behind what is drawn in one cell."""
        self._under[row * self.columns + column] = (character, ink)

    def row(self, number: int) -> Row:
        """One row of cells; neighbours of one ink are one span."""
        spans: list[Span] = []
        text, ink = "", Ink.PLAIN
        for cell in range(number * self.columns, (number + 1) * self.columns):
            character, its_ink = self._cell(cell)
            if its_ink is not ink and text:
                spans.append(Span(text, ink))
                text = ""
            ink = its_ink
            text += character
        if text:
            spans.append(Span(text, ink))
        return tuple(spans)

    def _cell(self, cell: int) -> tuple[str, Ink]:
        if cell in self._marks:
            return self._marks[cell]
        for ink, cells in reversed(self._layers):
            if bits := cells.get(cell):
                return chr(BLANK + bits), ink
        return self._under.get(cell, (" ", Ink.PLAIN))
