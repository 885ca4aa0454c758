"""Three themes of few colours. `dim` and `faint` are the foreground's weaker strengths, `strong` its stronger."""

from __future__ import annotations

from textual.theme import Theme

from supervisor.views.taste import ThemeName

DARK = Theme(
    name="stoker-dark",
    dark=True,
    primary="#4fd1b5",
    secondary="#4fd1b5",
    accent="#4fd1b5",
    success="#4fd1b5",
    warning="#f2b84b",
    error="#ff6f6f",
    foreground="#cdd3da",
    background="#0f1317",
    surface="#0f1317",
    panel="#1d242b",
    variables={"dim": "#7d8893", "faint": "#3d4852", "strong": "#ffffff"},
)
LIGHT = Theme(
    name="stoker-light",
    dark=False,
    primary="#00796b",
    secondary="#00796b",
    accent="#00796b",
    success="#00796b",
    warning="#9a5b00",
    error="#c02626",
    foreground="#30363d",
    background="#fbfbf8",
    surface="#fbfbf8",
    panel="#e8e9e4",
    variables={"dim": "#6b747d", "faint": "#c3c8c6", "strong": "#000000"},
)
# Colours of Okabe and Ito's palette that stay apart in each kind of colour blindness (Color Universal Design, 2008).
SAFE = Theme(
    name="stoker-safe",
    dark=True,
    primary="#56b4e9",
    secondary="#56b4e9",
    accent="#56b4e9",
    success="#56b4e9",
    warning="#f0e442",
    error="#e8702a",
    foreground="#cdd3da",
    background="#0f1317",
    surface="#0f1317",
    panel="#1d242b",
    variables={"dim": "#7d8893", "faint": "#3d4852", "strong": "#ffffff"},
)
THEMES = {ThemeName.DARK: DARK, ThemeName.LIGHT: LIGHT, ThemeName.SAFE: SAFE}
