"""The last line of a screen: the keys available now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.message import Message

from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, between, cells, row
from supervisor.views.tui.widgets.panel import Panel

# The words beside q are dropped if fewer than this many other keys would fit.
WANTED_HINTS = 8


class Hint(NamedTuple):
    """One key of the footer."""

    key: str
    word: str
    action: str
    recommended: bool = False


class FooterBar(Panel):
    """The keys available now, most wanted first; those that do not fit are in the help."""

    framed = False

    class Pressed(Message):
        """A hint was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._hints: tuple[Hint, ...] = ()
        self._last: Hint | None = None
        self._places: list[tuple[int, int, str]] = []
        self._covered = False

    @property
    def ready(self) -> bool:
        """Whether keys were offered."""
        return self._last is not None

    def cover(self, *, covered: bool) -> None:
        """Something is open over the screen, so none of its keys works or is shown."""
        if covered != self._covered:
            self._covered = covered
            self.repaint()

    def offer(self, hints: tuple[Hint, ...], last: Hint) -> None:
        """Show these keys; `last` is always at the right end."""
        if (hints, last) != (self._hints, self._last):
            self._hints, self._last = hints, last
            self.repaint()

    def body(self, width: int, height: int) -> Sequence[Row]:  # noqa: ARG002 - one line, however high
        """The line."""
        self._places = []
        if self._last is None or self._covered:
            return []
        hints = [hint._replace(word=self.tr(hint.word)) for hint in self._hints]
        wanted = 1 + sum(cells(_hint(hint)) for hint in hints[:WANTED_HINTS])
        last = self._last._replace(word=self.tr(self._last.word))
        if wanted + cells(_hint(last)) > width:
            last = last._replace(word=self.tr(self._last.word.partition(" (")[0]))
        right = _hint(last)
        room = width - cells(right)
        spans: list[Span] = [Span(" ")]
        self._places = [(width - cells(right), width, self._last.action)]
        at = 1
        for hint in hints:
            found = _hint(hint)
            size = cells(found)
            if at + size >= room:
                break
            self._places.append((at, at + size, hint.action))
            spans += found
            at += size
        return [between(tuple(spans), right, width)]

    def on_click(self, event: events.Click) -> None:
        """A click acts as the key."""
        for start, stop, action in self._places:
            if start <= event.x < stop:
                self.post_message(self.Pressed(action))


def _hint(hint: Hint) -> Row:
    if hint.recommended:
        return row(Span(f"[{hint.key} {hint.word}]", TextStyle.MATCH), Span("  "))
    return row(Span(hint.key, TextStyle.KEY), Span(f" {hint.word}  ", TextStyle.DIM))
