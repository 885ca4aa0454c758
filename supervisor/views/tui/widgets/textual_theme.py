"""The app's themes and their colors, an app that starts in one of them, and the style of each kind of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.widgets.filters import AsciiFilter, HarmlessFilter, no_colour
from supervisor.views.tui.widgets.paint import TextStyle

# `primary` (also `accent`): loss and focus; `band`: a weaker color behind the smoothed loss. `secondary`: speed and time.
# A second run beside the first is drawn in `secondary`, the next in `third` to `sixth`. `dim` and `faint` are weaker than
# the foreground, and `strong` is stronger.
_DARK: Final = Theme(
    name="stoker-dark",
    dark=True,
    primary="#4fd1b5",
    accent="#4fd1b5",
    secondary="#7fa8ff",
    success="#8ccf5f",
    warning="#f2b84b",
    error="#ff6f6f",
    foreground="#cdd3da",
    background="#0f1317",
    surface="#0f1317",
    panel="#1d242b",
    variables={
        "band": "#24574f",
        "third": "#e58ad8",
        "fourth": "#d8cf6a",
        "fifth": "#ff9d5c",
        "sixth": "#b394ff",
        "dim": "#7d8893",
        "faint": "#3d4852",
        "strong": "#ffffff",
    },
)
_LIGHT: Final = Theme(
    name="stoker-light",
    dark=False,
    primary="#00796b",
    accent="#00796b",
    secondary="#2456c4",
    success="#3a7d1e",
    warning="#9a5b00",
    error="#c02626",
    foreground="#30363d",
    background="#fbfbf8",
    surface="#fbfbf8",
    panel="#e8e9e4",
    variables={
        "band": "#a9d3cb",
        "third": "#a0288f",
        "fourth": "#7a5c00",
        "fifth": "#b34700",
        "sixth": "#6a3fc4",
        "dim": "#6b747d",
        "faint": "#c3c8c6",
        "strong": "#000000",
    },
)
# Colors from Okabe and Ito's palette that are distinct in all color blindness (Color Universal Design, 2008).
# Bluish green and reddish purple are lightened, to be as legible as text on the dark background.
_SAFE: Final = replace(
    _DARK,
    name="stoker-safe",
    primary="#56b4e9",
    accent="#56b4e9",
    secondary="#d98fb8",
    success="#34d1a2",
    warning="#f0e442",
    error="#e8702a",
    variables=_DARK.variables
    | {
        "band": "#27506a",
        "third": "#e69f00",
        "fourth": "#ffffff",
        "fifth": "#34d1a2",
        "sixth": "#f0e442",
    },
)
THEMES: Final = {ThemeName.DARK: _DARK, ThemeName.LIGHT: _LIGHT, ThemeName.SAFE: _SAFE}
NAMED: Final = {theme.name: theme for theme in THEMES.values()}


class ThemedApp(App[None]):
    """An app that starts in one of our themes, so Textual does not build a stylesheet for its default theme first.

    Args:
        appearance: the requested theme and whether to use plain ASCII.
    """

    def __init__(self, appearance: Appearance) -> None:
        self.set_reactive(App.theme, THEMES[appearance.theme].name)
        self._gates: list[LineFilter] = [HarmlessFilter()]
        if appearance.ascii:
            self._gates.append(AsciiFilter())
        super().__init__()
        for theme in THEMES.values():
            self.register_theme(theme)

    def get_theme(self, theme_name: str) -> Theme | None:
        """Return the theme called `theme_name`. Textual asks for one before themes can be registered."""
        return NAMED.get(theme_name) or super().get_theme(theme_name)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the line filters. Ours run after Textual's, or replace them if color is disabled."""
        if not self.no_color:
            return [*super().get_line_filters(), *self._gates]
        # Textual's own filter turns colors into gray, which is still a color.
        return [*self._gates, no_colour(self.theme_variables["foreground"])]


# These are not component classes of the stylesheet. Matching those against every rule for each pane and style
# took a third of the time to start and to return to the dashboard. Each entry has the theme's color of the
# text, the color of its background, and whether the text is bold.
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
    """Return the style for each kind of text in a theme. Equal colors give the same object."""
    return _styles(tuple(variables[name] for name in _COLOURS))


@lru_cache(8)
def _styles(colours: tuple[str, ...]) -> Mapping[TextStyle, Style]:
    known = {name: Color.parse(shown).rich_color for name, shown in zip(_COLOURS, colours, strict=True)}
    return {
        style: Style(color=known[text], bgcolor=known[behind], bold=bold or None)
        for style, (text, behind, bold) in LOOKS.items()
    }
