"""Help, made of the bindings that exist: it cannot say what is not so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from supervisor.views.tui.screen_base import OverScreen
from supervisor.views.tui.widgets.panel import tr_of


class HelpLine(NamedTuple):
    """One binding. `possible`: whether it would do something now."""

    group: str
    key: str
    word: str
    possible: bool


class HelpScreen(OverScreen[None]):
    """All keys, those that do nothing now dimmed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter,ctrl+c,f1", "close", "close"),
        Binding("j", "scroll(1)", "down"),
        Binding("k", "scroll(-1)", "up"),
    ]

    def __init__(self, lines: Sequence[HelpLine]) -> None:
        super().__init__()
        self.lines = tuple(lines)

    def compose(self) -> ComposeResult:
        """Groups of keys."""
        tr = tr_of(self)
        box = VerticalScroll(classes="box")
        box.border_title = tr("keys")
        box.border_subtitle = tr("Esc closes · j k scroll · Shift-drag selects text")
        with box:
            yield Static(self._text())

    def _text(self) -> Content:
        """All lines as one widget: sixty of them took a tenth of a second to mount."""
        parts: list[Content] = []
        group = ""
        for line in self.lines:
            if line.group != group:
                group = line.group
                parts.append(Content.styled(f"{'' if not parts else chr(10)}{group}", "bold $strong"))
            text = f"  {line.key:<9} {line.word} "
            parts.append(Content(text) if line.possible else Content.styled(text, "$dim"))
        return Content("\n").join(parts)

    def action_close(self) -> None:
        """Back to the dashboard."""
        self.dismiss(None)

    def action_scroll(self, way: int) -> None:
        """Move by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=way, animate=False)
