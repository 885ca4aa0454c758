"""What our screens share: keys by name, a footer that shows them, and dialogs over another screen."""

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
# Keys that leave the app, on the dashboard and in the list of runs: they never wait.
LEAVING = frozenset({"q", "d", "ctrl+c", "ctrl+q"})
# Other keys wait so long for the first that is read.
FIRST_READ_S = 5.0
# Keys without a character whose silence would be noticed.
NAMED_KEYS = frozenset({"enter", "backspace", "delete", "insert", *(f"f{number}" for number in range(1, 13))})


def key_commands() -> type[Provider]:
    """The palette, its library and the editor's are a tenth of a second that the start need not wait for."""
    from supervisor.views.tui.shell.command_palette import KeyCommands

    return KeyCommands


def silence_of(screen: Screen[Any], event: events.Key) -> str | None:
    """What to say to a key that a person typed and that does nothing on a screen; None where it does something."""
    if screen.app.screen is not screen or event.key in screen.active_bindings:
        return None
    if not event.is_printable and event.key not in NAMED_KEYS:
        return None
    key = event.character if event.is_printable and event.character else event.key.capitalize()
    return f"{key} does nothing here, ? shows the keys"


class KeyScreen(MessagePump):
    """For screens: a click in the footer is its key, `:` opens all commands, and a covered footer shows no keys."""

    def on_screen_suspend(self) -> None:
        """Another screen has the keys."""
        self._cover_footer(covered=True)

    def on_screen_resume(self) -> None:
        """This has the keys again."""
        self._cover_footer(covered=False)

    def on_footer_bar_pressed(self, message: FooterBar.Pressed) -> None:
        """A click on a hint is its key."""
        assert isinstance(self, Screen)
        self.call_later(self.run_action, message.action)

    def action_commands(self) -> None:
        """All commands, to be found by their names."""
        from supervisor.views.tui.shell.command_palette import Palette

        assert isinstance(self, Screen)
        self.app.push_screen(Palette(placeholder=tr_of(self)("what should happen?")))

    def _cover_footer(self, *, covered: bool) -> None:
        assert isinstance(self, Screen)
        for footer in self.query(FooterBar):
            footer.cover(covered=covered)


class OverScreen(KeyScreen, ModalScreen[ScreenResultType]):
    """A modal screen; on a narrow terminal its box takes all of the width, on a low one its keys stay in sight."""

    # Textual declares them as variables of an instance.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_BELOW, "-usual")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW_BELOW, "-high")]  # noqa: RUF012

    is_restart_stopped = False
    """Whether an automatic restart was stopped because this is open."""

    def renew(self) -> None:
        """The run that is asked about has moved on."""

    def stopped_line(self) -> Label:
        """The line of a dialog about the next attempt that says that none starts by itself; shown only where one would have."""
        line = Label(Content(tr_of(self)(RESTART_STOPPED)), classes="quiet", id="stopped")
        line.display = self.is_restart_stopped
        return line

    def show_stopped(self, is_stopped: bool) -> None:
        """Show that line, or hide it."""
        self.is_restart_stopped = is_stopped
        for line in self.query("#stopped"):
            line.display = is_stopped
