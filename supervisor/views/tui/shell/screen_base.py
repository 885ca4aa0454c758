"""The base of our screens: keys by name, a footer that shows them, and dialogs over another screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual import events
from textual.content import Content
from textual.message_pump import MessagePump
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Label

from supervisor.views.tui.widgets.footer import FooterBar
from supervisor.views.tui.widgets.panel import tr_of

if TYPE_CHECKING:
    from textual.command import Provider

NARROW_BELOW = 64
RESTART_STOPPED = "the automatic restart is stopped; if you leave this, the run waits for you"
LOW_BELOW = 18
# Keys that quit the app, on the dashboard and in the list of runs: they never wait.
LEAVING = frozenset({"q", "d", "ctrl+c", "ctrl+q"})
# Other keys wait this long for the first data.
FIRST_READ_S = 5.0
# Keys without a character, whose silence would be noticed.
NAMED_KEYS = frozenset({"enter", "backspace", "delete", "insert", *(f"f{number}" for number in range(1, 13))})


def key_commands() -> type[Provider]:
    """Imported late: the palette, its library and the editor's take a tenth of a second at the start."""
    from supervisor.views.tui.shell.command_palette import KeyCommands

    return KeyCommands


def silence_of(screen: Screen[Any], event: events.Key) -> str | None:
    """The message for a key that has no effect on a screen; None if it has one."""
    if screen.app.screen is not screen or event.key in screen.active_bindings:
        return None
    if not event.is_printable and event.key not in NAMED_KEYS:
        return None
    key = event.character if event.is_printable and event.character else event.key.capitalize()
    return f"{key} does nothing here, ? shows the keys"


class KeyScreen(MessagePump):
    """For screens: footer clicks act as keys, `:` opens all commands, and a covered footer shows no keys."""

    def on_screen_suspend(self) -> None:
        """Another screen has the focus."""
        self._cover_footer(covered=True)

    def on_screen_resume(self) -> None:
        """This screen has the focus again."""
        self._cover_footer(covered=False)

    def on_footer_bar_pressed(self, message: FooterBar.Pressed) -> None:
        """A click on a hint acts as its key."""
        assert isinstance(self, Screen)
        self.call_later(self.run_action, message.action)

    def action_commands(self) -> None:
        """All commands, searchable by name."""
        from supervisor.views.tui.shell.command_palette import Palette

        assert isinstance(self, Screen)
        self.app.push_screen(Palette(placeholder=tr_of(self)("what should happen?")))

    def _cover_footer(self, *, covered: bool) -> None:
        assert isinstance(self, Screen)
        for footer in self.query(FooterBar):
            footer.cover(covered=covered)


class OverScreen(KeyScreen, ModalScreen[ScreenResultType]):
    """A modal screen; on a narrow terminal its box takes the full width, on a low one its keys stay visible."""

    # Textual declares them as instance variables.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_BELOW, "-usual")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW_BELOW, "-high")]  # noqa: RUF012

    is_restart_stopped = False
    """Whether an automatic restart was stopped because this is open."""

    def renew(self) -> None:
        """The run in question has changed."""

    def stopped_line(self) -> Label:
        """The line of a dialog that says that no attempt starts on its own; shown only if one would have."""
        line = Label(Content(tr_of(self)(RESTART_STOPPED)), classes="quiet", id="stopped")
        line.display = self.is_restart_stopped
        return line

    def show_stopped(self, is_stopped: bool) -> None:
        """Show that line, or hide it."""
        self.is_restart_stopped = is_stopped
        for line in self.query("#stopped"):
            line.display = is_stopped
