"""The colours of the three themes (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple

from supervisor.views.appearance import ThemeName


class Palette(NamedTuple):
    """Colours as ``#rrggbb``. `dim` and `faint` are the foreground's weaker strengths, `strong` its stronger."""

    name: str
    dark: bool
    live: str
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
    live="#4fd1b5",
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
    live="#00796b",
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
    # Colours of Okabe and Ito's palette that stay apart in each kind of colour blindness (Color Universal Design, 2008).
    ThemeName.SAFE: _DARK._replace(name="stoker-safe", live="#56b4e9", warn="#f0e442", bad="#e8702a"),
}


def chosen(asked: ThemeName | None, remembered: str | None) -> Palette:
    """The palette that was asked for, else the one that is remembered by its name, else the dark one."""
    if asked is not None:
        return PALETTES[asked]
    known = (palette for palette in PALETTES.values() if palette.name == remembered)
    return next(known, PALETTES[ThemeName.DARK])
