"""An app in stoker's themes from its first moment."""

from __future__ import annotations

from textual.app import App
from textual.theme import Theme

from supervisor.views.appearance import ThemeName
from supervisor.views.tui.theme.palette import chosen
from supervisor.views.tui.theme.themes import THEMES

NAMED = {theme.name: theme for theme in THEMES.values()}


class ThemedApp(App[None]):
    """Textual makes its stylesheet in its own theme, and makes it anew when another is set: here it is made once.

    Args:
        asked: the theme that was asked for; None: the one that is remembered.
        remembered: a theme's name; one that is not known is the dark one.
    """

    def __init__(self, asked: ThemeName | None, remembered: str | None) -> None:
        self.set_reactive(App.theme, chosen(asked, remembered).name)
        super().__init__()
        for theme in THEMES.values():
            self.register_theme(theme)

    def get_theme(self, theme_name: str) -> Theme | None:
        """A theme by its name; Textual asks before one can be registered."""
        return NAMED.get(theme_name) or super().get_theme(theme_name)
