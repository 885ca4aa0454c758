"""Base classes for screens: named keys, a footer that shows them, and dialogs over another screen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import events
from textual.content import Content
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Label

from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, between, cells, row
from supervisor.views.tui.widgets.panel import Panel, tr_of

if TYPE_CHECKING:
    from textual.command import Provider

# Drop the words beside q if fewer than this many other keys would fit.
WANTED_HINTS = 8
NARROW_BELOW = 64
RESTART_STOPPED = "the automatic restart is stopped; if you leave this, the run waits for you"
LOW_BELOW = 18
# Keys that quit the app, on the dashboard and in the list of runs. They never wait.
LEAVING = frozenset({"q", "d", "ctrl+c", "ctrl+q"})
# Other keys wait this long for the first data.
FIRST_READ_S = 5.0
TICK_S = 1.0
# Keys without a character. A user would notice if they did nothing.
NAMED_KEYS = frozenset({"enter", "backspace", "delete", "insert", *(f"f{number}" for number in range(1, 13))})


class Hint(NamedTuple):
    """A key shown in the footer."""

    key: str
    word: str
    action: str
    recommended: bool = False


class FooterBar(Panel):
    """A footer that shows the currently available keys, most important first. Keys that do not fit are listed in the help."""

    framed = False

    class Pressed(Message):
        """Posted when a hint is clicked."""

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
        """Whether the footer has keys to show."""
        return self._last is not None

    def cover(self, *, covered: bool) -> None:
        """Hide the keys while another screen covers this one, because none of them work."""
        if covered != self._covered:
            self._covered = covered
            self.repaint()

    def offer(self, hints: tuple[Hint, ...], last: Hint) -> None:
        """Show these keys, with `last` always at the right edge."""
        if (hints, last) != (self._hints, self._last):
            self._hints, self._last = hints, last
            self.repaint()

    def body(self, width: int, height: int) -> Sequence[Row]:  # noqa: ARG002 - one line, however high
        """Return the footer line."""
        self._places = []
        if self._last is None or self._covered:
            return []
        hints = [hint._replace(word=self.tr(hint.word)) for hint in self._hints]
        wanted = 1 + sum(cells(_hint(hint)) for hint in hints[:WANTED_HINTS])
        right = _hint(self._last._replace(word=self.tr(self._last.word)))
        if wanted + cells(right) > width:
            right = _hint(self._last._replace(word=self.tr(self._last.word.partition(" (")[0])))
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
        """Run the clicked hint's action."""
        for start, stop, action in self._places:
            if start <= event.x < stop:
                self.post_message(self.Pressed(action))


def _hint(hint: Hint) -> Row:
    if hint.recommended:
        return row(Span(f"[{hint.key} {hint.word}]", TextStyle.MATCH), Span("  "))
    return row(Span(hint.key, TextStyle.KEY), Span(f" {hint.word}  ", TextStyle.DIM))


def key_commands() -> type[Provider]:
    """Import the command palette on first use, because loading it and its libraries takes a tenth of a second."""
    from supervisor.views.tui.shell.command_palette import KeyCommands

    return KeyCommands


def waits_for_data(event: events.Event, made_t: float) -> bool:
    """Check whether a key has to wait for the first data of a screen made at `made_t`. The keys that quit never wait."""
    leaves = isinstance(event, events.Key) and event.key in LEAVING
    return not leaves and time.monotonic() - made_t < FIRST_READ_S


def silence_of(screen: Screen[Any], event: events.Key) -> str | None:
    """Return the message to show for a key that does nothing on a screen, or None if the key does something."""
    if screen.app.screen is not screen or event.key in screen.active_bindings:
        return None
    if not event.is_printable and event.key not in NAMED_KEYS:
        return None
    key = event.character if event.is_printable and event.character else event.key.capitalize()
    return f"{key} does nothing here, ? shows the keys"


class KeyScreen(MessagePump):
    """Base class for screens. Clicking a footer hint acts like its key, `:` lists all commands, and a covered footer is blank."""

    def on_screen_suspend(self) -> None:
        """Hide the footer keys while another screen is active."""
        self._cover_footer(covered=True)

    def on_screen_resume(self) -> None:
        """Show the footer keys again when this screen becomes active."""
        self._cover_footer(covered=False)

    def on_footer_bar_pressed(self, message: FooterBar.Pressed) -> None:
        """Run the clicked hint's action."""
        assert isinstance(self, Screen)
        self.call_later(self.run_action, message.action)

    def action_commands(self) -> None:
        """Show all commands, searchable by name."""
        from supervisor.views.tui.shell.command_palette import Palette

        assert isinstance(self, Screen)
        self.app.push_screen(Palette(placeholder=tr_of(self)("what should happen?")))

    def _cover_footer(self, *, covered: bool) -> None:
        assert isinstance(self, Screen)
        for footer in self.query(FooterBar):
            footer.cover(covered=covered)


class OverScreen(KeyScreen, ModalScreen[ScreenResultType]):
    """A modal screen. On a narrow terminal, its box is full width; on a short one, the keys stay visible."""

    # Textual declares them as instance variables.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_BELOW, "-usual")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW_BELOW, "-high")]  # noqa: RUF012

    is_restart_stopped = False
    """Whether opening this dialog stopped an automatic restart."""

    def renew(self) -> None:
        """Update the dialog after the run changes."""

    def stopped_line(self) -> Label:
        """Return the line that tells the user a restart was stopped. It is hidden unless a restart was due."""
        line = Label(Content(tr_of(self)(RESTART_STOPPED)), classes="quiet", id="stopped")
        line.display = self.is_restart_stopped
        return line

    def show_stopped(self, is_stopped: bool) -> None:
        """Show or hide the line that says a restart was stopped."""
        self.is_restart_stopped = is_stopped
        for line in self.query("#stopped"):
            line.display = is_stopped
