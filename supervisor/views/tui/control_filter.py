"""The last gate before the terminal: whatever widget a line comes from, only characters pass, no commands.

Our own panes clean their text themselves; Textual's fields, labels and lists paint what they are given.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from supervisor.views.tui.widgets.paint import plain


class HarmlessFilter(LineFilter):
    """Takes control characters and their like out of a line, which stays as wide as before."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - textual's own signature
        """The line, free of commands."""
        if all(segment.control or plain(segment.text) is segment.text for segment in segments):
            return segments
        return [
            segment if segment.control else Segment(harmless(segment.text), segment.style)
            for segment in segments
        ]


def harmless(text: str) -> str:
    """`text` without the characters that command a terminal, as wide as before."""
    width = cell_len(text)
    kept = "".join(_sign(c) for c in text)
    return kept + " " * (width - cell_len(kept))


def _sign(char: str) -> str:
    if plain(char) == char:
        return char
    return "\ufffd" if cell_len(char) else ""
