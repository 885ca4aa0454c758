"""What our screens add to Textual's: they paint sooner, and a dialog over another screen tints it quickly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.content import Content
from textual.message_pump import MessagePump
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Label

from supervisor.views.tui.widgets.footer import FooterBar
from supervisor.views.tui.widgets.panel import tr_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.command import Provider
    from textual.timer import Timer, TimerCallback

# Textual's own 1/60 s are felt: a key that comes just after ten new lines were painted waits for them.
FRAME_S = 1 / 250
NARROW_BELOW = 64
RESTART_STOPPED = "the automatic restart is stopped; if you leave this, the run waits for you"
LOW_BELOW = 18
# What Textual (8.x, screen.py) names the timer at which a screen paints what has changed.
PAINTING = "screen_update"


def key_commands() -> type[Provider]:
    """The palette, its library and the editor's are a tenth of a second that the start need not wait for."""
    from supervisor.views.tui.commands import KeyCommands

    return KeyCommands


class QuickFrames(MessagePump):
    """For screens: up to 250 paints a second; new data arrives about seven times a second. A covered footer shows no keys."""

    def set_interval(
        self,
        interval: float,
        callback: TimerCallback | None = None,
        *,
        name: str | None = None,
        repeat: int = 0,
        pause: bool = False,
    ) -> Timer:
        """Textual's own, quicker for the timer that paints."""
        interval = min(interval, FRAME_S) if name == PAINTING else interval
        return super().set_interval(interval, callback, name=name, repeat=repeat, pause=pause)

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
        from supervisor.views.tui.commands import Palette

        assert isinstance(self, Screen)
        self.app.push_screen(Palette(placeholder=tr_of(self)("what should happen?")))

    def _cover_footer(self, *, covered: bool) -> None:
        assert isinstance(self, Screen)
        for footer in self.query(FooterBar):
            footer.cover(covered=covered)


class OverScreen(QuickFrames, ModalScreen[ScreenResultType]):
    """A modal screen whose background is quickly tinted; on a narrow terminal its box takes all of the width, on a low one its keys stay in sight."""

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

    def render(self) -> RenderableType:
        """The screen beneath."""
        found = super().render()
        return Tinted(found.screen, found.color) if type(found) is BackgroundScreen else found


class Tinted(BackgroundScreen):
    """Textual's own tint, worked out once a style: a screen has some thousand segments and some twenty styles."""

    @classmethod
    def process_segments(cls, segments: Iterable[Segment], color: Color) -> Iterable[Segment]:
        """The segments, tinted."""
        tinted: dict[Style | None, Style | None] = {}
        for segment in segments:
            if segment.control:
                yield segment
                continue
            if segment.style not in tinted:
                tinted[segment.style] = next(iter(super().process_segments([segment], color))).style
            yield Segment(segment.text, tinted[segment.style])
