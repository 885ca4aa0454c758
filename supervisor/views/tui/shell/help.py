"""Help generated from the actual bindings, so it is always correct."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar, Final, NamedTuple

from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import events
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.keys import format_key
from textual.widgets import Static

from supervisor.views.tui.shell.screen_base import OverScreen
from supervisor.views.tui.widgets.panel import tr_of

# The keys of one line, separately: ``← h``, ``Ctrl ↑``.
_ONE_KEY = re.compile(r"Ctrl \S+|\S+")
# A column is at least this wide. KEY_CELLS of the width are for keys.
COLUMN_CELLS = 38
KEY_CELLS = 14
MOST_COLUMNS = 3
# Keys whose names in Textual differ from those in our texts.
NAMES: Final = {"enter": "Enter", "pageup": "PgUp", "pagedown": "PgDn"}


class HelpLine(NamedTuple):
    """A binding that is available now."""

    group: str
    key: str
    word: str


def key_names(keys: str) -> str:
    """Format key names for display: ``+ Shift-←`` for ``plus,shift+left``."""
    names = []
    for key in keys.split(","):
        *held, last = key.split("+")
        name = NAMES.get(last) or format_key(last)
        held.append(name if len(name) == 1 else name[0].upper() + name[1:])
        names.append("-".join([*(each.capitalize() for each in held[:-1]), held[-1]]))
    return " ".join(names)


def bindings_of(node: DOMNode) -> list[BindingType]:
    """Return a node's bindings, those of its own class before those of its base classes."""
    return [binding for each in type(node).__mro__ for binding in each.__dict__.get("BINDINGS", ())]


def lines_of(node: DOMNode, group: str, bindings: Iterable[BindingType]) -> list[HelpLine]:
    """Return help lines for the bindings that are currently available on a screen or focused pane."""
    tr, lines = tr_of(node), []
    for binding in bindings:
        if not isinstance(binding, Binding):
            continue
        space, name, parameters = parse(binding.action)
        if space or node.check_action(name, parameters):
            key = binding.key_display or key_names(binding.key)
            lines.append(HelpLine(tr(group), key, tr(binding.tooltip or binding.description)))
    return lines


class HelpScreen(OverScreen[None]):
    """A help screen that lists the keys that work now, in columns. If a key is bound twice, only its first binding is listed.

    Args:
        lines: the help lines in order, starting with the focused pane's lines.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter,ctrl+c,f1", "close", "close"),
        Binding("j", "scroll(1)", "down"),
        Binding("k", "scroll(-1)", "up"),
    ]

    def __init__(self, lines: Sequence[HelpLine]) -> None:
        super().__init__()
        taken: set[str] = set()
        self.lines: tuple[HelpLine, ...] = ()
        for line in lines:
            free = [key for key in _ONE_KEY.findall(line.key) if key not in taken]
            taken.update(free)
            self.lines += (line._replace(key=" ".join(free)),) if free else ()

    def compose(self) -> ComposeResult:
        """Yield the box for the key groups."""
        tr = tr_of(self)
        box = VerticalScroll(classes="box")
        box.border_title = tr("keys")
        box.border_subtitle = tr("Esc closes · j k scroll · Shift-drag selects text")
        with box:
            yield Static(id="keys")

    def on_resize(self, event: events.Resize) -> None:
        """Use as many columns as fit. All lines share one widget, because creating sixty widgets takes 0.1 s."""
        columns = max(1, min(MOST_COLUMNS, event.size.width // COLUMN_CELLS))
        style = Style(bold=True, color=self.app.theme_variables["strong"])
        parts: list[Text | Table] = []
        for group in dict.fromkeys(line.group for line in self.lines):
            parts += [Text()] if parts else []
            parts += [
                Text(group, style),
                _table([line for line in self.lines if line.group == group], columns),
            ]
        self.query_one("#keys", Static).update(Group(*parts))

    def action_close(self) -> None:
        """Return to the dashboard."""
        self.dismiss(None)

    def action_scroll(self, way: int) -> None:
        """Scroll by one line."""
        self.query_one(VerticalScroll).scroll_relative(y=way, animate=False)


def _table(lines: Sequence[HelpLine], columns: int) -> Table:
    """Return a table of keys and descriptions that reads down each column."""
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in range(columns):
        table.add_column(style="bold", width=KEY_CELLS)
        table.add_column(ratio=1)
    size = -(-len(lines) // columns)
    for row in zip_longest(*(lines[at : at + size] for at in range(0, len(lines), size))):
        cells = [Text(text) for line in row if line is not None for text in (f"  {line.key}", line.word)]
        table.add_row(*cells)
    return table
