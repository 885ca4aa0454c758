"""Stoker's palettes for Textual and Rich: the themes, an app that starts in one, and the style of each kind of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from supervisor.views.appearance import Appearance
from supervisor.views.tui.widgets.filters import AsciiFilter, HarmlessFilter, no_colour
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.palette import PALETTES, Palette, chosen


def _theme(palette: Palette) -> Theme:
    return Theme(
        name=palette.name,
        dark=palette.dark,
        primary=palette.accent,
        secondary=palette.pace,
        accent=palette.accent,
        success=palette.good,
        warning=palette.warn,
        error=palette.bad,
        foreground=palette.foreground,
        background=palette.background,
        surface=palette.background,
        panel=palette.panel,
        variables={
            name: getattr(palette, name)
            for name in ("dim", "faint", "strong", "band", "third", "fourth", "fifth", "sixth")
        },
    )


THEMES = {name: _theme(palette) for name, palette in PALETTES.items()}
NAMED = {theme.name: theme for theme in THEMES.values()}


class ThemedApp(App[None]):
    """An app that starts in one of our themes. Textual would build its stylesheet in its own theme first, then again in ours.

    Args:
        appearance: the requested theme, None for the saved one; and whether to use plain ASCII.
        remembered: the saved theme's name; an unknown name means the dark theme.
    """

    def __init__(self, appearance: Appearance, remembered: str | None) -> None:
        self.set_reactive(App.theme, chosen(appearance.theme, remembered).name)
        self._gates: list[LineFilter] = [HarmlessFilter()]
        if appearance.ascii:
            self._gates.append(AsciiFilter())
        super().__init__()
        for theme in THEMES.values():
            self.register_theme(theme)

    def get_theme(self, theme_name: str) -> Theme | None:
        """A theme by its name; Textual asks before one can be registered."""
        return NAMED.get(theme_name) or super().get_theme(theme_name)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The filters for harmless lines and for plain ASCII, if requested, come last."""
        if not self.no_color:
            return [*super().get_line_filters(), *self._gates]
        # Textual's own filter turns colors into gray, and gray is a color.
        return [*self._gates, no_colour(self.theme_variables["foreground"])]


# Not component classes of the stylesheet: matching those against every rule for each pane and style took a
# third of the start and of each return to the dashboard. Names of the theme's colours: of the text, of what
# is behind it; whether it is bold.
LOOKS: dict[TextStyle, tuple[str, str, bool]] = {
    TextStyle.PLAIN: ("foreground", "background", False),
    TextStyle.DIM: ("dim", "background", False),
    TextStyle.STRONG: ("strong", "background", True),
    TextStyle.LIVE: ("success", "background", False),
    TextStyle.LOSS: ("accent", "background", False),
    TextStyle.BAND: ("band", "background", False),
    TextStyle.PACE: ("secondary", "background", False),
    TextStyle.THIRD: ("third", "background", False),
    TextStyle.FOURTH: ("fourth", "background", False),
    TextStyle.FIFTH: ("fifth", "background", False),
    TextStyle.SIXTH: ("sixth", "background", False),
    TextStyle.WARN: ("warning", "background", False),
    TextStyle.BAD: ("error", "background", True),
    TextStyle.KEY: ("strong", "background", True),
    TextStyle.FRAME: ("faint", "background", False),
    TextStyle.FOCUS: ("accent", "background", False),
    TextStyle.CURSOR: ("background", "accent", False),
    TextStyle.MATCH: ("background", "warning", True),
    TextStyle.ROOT: ("background", "error", True),
}
_COLOURS = tuple(dict.fromkeys(name for look in LOOKS.values() for name in look[:2]))


def styles_of(variables: Mapping[str, str]) -> Mapping[TextStyle, Style]:
    """The style of each kind of text, from the variables of a theme; the same object for the same colors."""
    return _styles(tuple(variables[name] for name in _COLOURS))


@lru_cache(8)
def _styles(colours: tuple[str, ...]) -> Mapping[TextStyle, Style]:
    known = {name: Color.parse(shown).rich_color for name, shown in zip(_COLOURS, colours, strict=True)}
    return {
        style: Style(color=known[text], bgcolor=known[behind], bold=bold or None)
        for style, (text, behind, bold) in LOOKS.items()
    }
