"""The three themes as Textual has them."""

from __future__ import annotations

from textual.theme import Theme

from supervisor.views.tui.theme.palette import PALETTES, Palette


def _theme(palette: Palette) -> Theme:
    return Theme(
        name=palette.name,
        dark=palette.dark,
        primary=palette.live,
        secondary=palette.live,
        accent=palette.live,
        success=palette.live,
        warning=palette.warn,
        error=palette.bad,
        foreground=palette.foreground,
        background=palette.background,
        surface=palette.background,
        panel=palette.panel,
        variables={"dim": palette.dim, "faint": palette.faint, "strong": palette.strong},
    )


THEMES = {name: _theme(palette) for name, palette in PALETTES.items()}
