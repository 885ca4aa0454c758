"""The colors of the three themes, and the one that a person chose last."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import make_private, replace_file
from supervisor.views.appearance import ThemeName


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
