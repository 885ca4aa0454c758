"""Our themes: their colors, the one that a person chose last, an app that starts in it, and the style of each kind of text."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from supervisor.run.paths import make_private, replace_file
from supervisor.run.regular import decoded_file
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.widgets.filters import AsciiFilter, HarmlessFilter, no_colour
from supervisor.views.tui.widgets.paint import TextStyle


class Palette(NamedTuple):
    """Colors as ``#rrggbb``. `dim` and `faint` are weaker than the foreground, `strong` is stronger.

    `accent`: loss and focus; `band`: a weaker accent behind the smoothed loss. `good`, `warn`, `bad`: values and states.
    `pace`: speed and time. A second run beside the first is drawn in `pace`, the next in `third` to `sixth`.
    """

    name: str
    dark: bool
    accent: str
    band: str
    pace: str
    third: str
    fourth: str
    fifth: str
    sixth: str
    good: str
    warn: str
    bad: str
    foreground: str
    background: str
    panel: str
    dim: str
    faint: str
    strong: str


_DARK: Final = Palette(
    name="stoker-dark",
    dark=True,
    accent="#4fd1b5",
    band="#24574f",
    pace="#7fa8ff",
    third="#e58ad8",
    fourth="#d8cf6a",
    fifth="#ff9d5c",
    sixth="#b394ff",
    good="#8ccf5f",
    warn="#f2b84b",
    bad="#ff6f6f",
    foreground="#cdd3da",
    background="#0f1317",
    panel="#1d242b",
    dim="#7d8893",
    faint="#3d4852",
    strong="#ffffff",
)
_LIGHT: Final = Palette(
    name="stoker-light",
    dark=False,
    accent="#00796b",
    band="#a9d3cb",
    pace="#2456c4",
    third="#a0288f",
    fourth="#7a5c00",
    fifth="#b34700",
    sixth="#6a3fc4",
    good="#3a7d1e",
    warn="#9a5b00",
    bad="#c02626",
    foreground="#30363d",
    background="#fbfbf8",
    panel="#e8e9e4",
    dim="#6b747d",
    faint="#c3c8c6",
    strong="#000000",
)
PALETTES: Final = {
    ThemeName.DARK: _DARK,
    ThemeName.LIGHT: _LIGHT,
    # Colors of Okabe and Ito's palette that are distinct in all color blindness (Color Universal Design, 2008). The
    # bluish green and the reddish purple are lightened, to be as legible as text on the dark background.
    ThemeName.SAFE: _DARK._replace(
        name="stoker-safe",
        accent="#56b4e9",
        band="#27506a",
        pace="#d98fb8",
        third="#e69f00",
        fourth="#ffffff",
        fifth="#34d1a2",
        sixth="#f0e442",
        good="#34d1a2",
        warn="#f0e442",
        bad="#e8702a",
    ),
}


def chosen(asked: ThemeName | None, remembered: str | None) -> Palette:
    """The requested palette, else the saved one by its name, else the dark one."""
    if asked is not None:
        return PALETTES[asked]
    known = (palette for palette in PALETTES.values() if palette.name == remembered)
    return next(known, PALETTES[ThemeName.DARK])


MOST_BYTES = 1 << 16


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the app saves of a person's choices."""

    theme: str | None = None


def load(path: Path | None) -> Kept:
    """The saved choices; defaults if the file is missing or invalid."""
    return (decoded_file(path, Kept, MOST_BYTES) if path is not None else None) or Kept()


def save(path: Path | None, kept: Kept) -> None:
    """Save them, by rename. A location that cannot be written loses the choices, never the session."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        make_private(path.parent)
        replace_file(path, msgspec.json.encode(kept) + b"\n")


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
