"""What each ink looks like in the theme that is worn.

Not by component classes of the stylesheet: those are matched against every rule for each pane and each ink, which took
a third of the start and of each return to the dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style
from textual.color import Color

from supervisor.views.tui.widgets.paint import TextStyle

# Names of the theme's colours: of the text, of what is behind it; whether it is bold.
LOOKS: dict[TextStyle, tuple[str, str, bool]] = {
    TextStyle.PLAIN: ("foreground", "background", False),
    TextStyle.DIM: ("dim", "background", False),
    TextStyle.STRONG: ("strong", "background", True),
    TextStyle.LIVE: ("success", "background", False),
    TextStyle.WARN: ("warning", "background", False),
    TextStyle.BAD: ("error", "background", True),
    TextStyle.KEY: ("strong", "background", True),
    TextStyle.FRAME: ("faint", "background", False),
    TextStyle.FOCUS: ("success", "background", False),
    TextStyle.CURSOR: ("background", "success", False),
    TextStyle.MATCH: ("background", "warning", True),
    TextStyle.ROOT: ("background", "error", True),
}
_COLOURS = tuple(dict.fromkeys(name for look in LOOKS.values() for name in look[:2]))


def styles_of(variables: Mapping[str, str]) -> Mapping[TextStyle, Style]:
    """The style of each ink, from the variables of a theme; the same object for the same colours."""
    return _styles(tuple(variables[name] for name in _COLOURS))


@lru_cache(8)
def _styles(colours: tuple[str, ...]) -> Mapping[TextStyle, Style]:
    known = {name: Color.parse(shown).rich_color for name, shown in zip(_COLOURS, colours, strict=True)}
    return {
        style: Style(color=known[text], bgcolor=known[behind], bold=bold or None)
        for style, (text, behind, bold) in LOOKS.items()
    }
