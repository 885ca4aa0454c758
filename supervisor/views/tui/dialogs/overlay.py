"""What opens over another screen and leaves it in sight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, ScreenResultType

from supervisor.views.tui.frame_rate import QuickFrames

if TYPE_CHECKING:
    from rich.console import RenderableType


class OverScreen(QuickFrames, ModalScreen[ScreenResultType]):
    """A modal screen whose background is quickly tinted."""

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
