"""Two themes of few colours. `dim` and `faint` are the foreground's weaker strengths, `strong` its stronger."""

from __future__ import annotations

from textual.theme import Theme

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
