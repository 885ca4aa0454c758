"""What each ink looks like in the theme that is worn.

Not by component classes of the stylesheet: those are matched against every rule for each pane and each ink, which took
a third of the start and of each return to the dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style
from textual.color import Color

from supervisor.views.tui.widgets.paint import Ink

# Names of the theme's colours: of the text, of what is behind it; whether it is bold.
LOOKS: dict[Ink, tuple[str, str, bool]] = {
    Ink.PLAIN: ("foreground", "background", False),
    Ink.DIM: ("dim", "background", False),
    Ink.STRONG: ("strong", "background", True),
    Ink.LIVE: ("success", "background", False),
    Ink.WARN: ("warning", "background", False),
    Ink.BAD: ("error", "background", True),
    Ink.KEY: ("strong", "background", True),
    Ink.FRAME: ("faint", "background", False),
    Ink.FOCUS: ("success", "background", False),
    Ink.CURSOR: ("background", "success", False),
    Ink.MATCH: ("background", "warning", True),
    Ink.ROOT: ("background", "error", True),
}
_COLOURS = tuple(dict.fromkeys(name for look in LOOKS.values() for name in look[:2]))


def inks_of(variables: Mapping[str, str]) -> Mapping[Ink, Style]:
    """The style of each ink, from the variables of a theme; the same object for the same colours."""
    return _styles(tuple(variables[name] for name in _COLOURS))


@lru_cache(8)
def _styles(colours: tuple[str, ...]) -> Mapping[Ink, Style]:
    known = {name: Color.parse(said).rich_color for name, said in zip(_COLOURS, colours, strict=True)}
    return {
        ink: Style(color=known[text], bgcolor=known[behind], bold=bold or None)
        for ink, (text, behind, bold) in LOOKS.items()
    }
