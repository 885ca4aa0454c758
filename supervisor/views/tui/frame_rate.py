"""How soon after a paint the next one may come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message_pump import MessagePump

if TYPE_CHECKING:
    from textual.timer import Timer, TimerCallback

# Textual's own 1/60 s are felt: a key that comes just after ten new lines were painted waits for them.
FRAME_S = 1 / 250
# What Textual (8.x, screen.py) names the timer at which a screen paints what has changed.
PAINTING = "screen_update"


class QuickFrames(MessagePump):
    """For screens: up to 250 paints a second; new data arrives about seven times a second."""

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
