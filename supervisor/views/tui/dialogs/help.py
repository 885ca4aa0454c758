"""Help, generated from the existing bindings, so that it is always correct."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar, Final, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.widgets import Static

from supervisor.views.tui.shell.screen_base import OverScreen
from supervisor.views.tui.widgets.paint import fit, wrap
from supervisor.views.tui.widgets.panel import tr_of

# The keys of one line, separately: ``← h``, ``Ctrl ↑``.
_ONE_KEY = re.compile(r"Ctrl \S+|\S+")
# A column is at least wide enough for a sentence in two lines; this much of it is for keys.
COLUMN_CELLS = 36
KEY_CELLS = 11
MOST_COLUMNS = 3
# The frame, padding and scrollbar of the box around the columns; and its maximum width (as in the stylesheet).
AROUND_CELLS = 7
BOX_CELLS = 147
# Textual's names of keys, as written on a keyboard.
NAMES: Final = {
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "comma": ",",
    "full_stop": ".",
    "slash": "/",
    "backslash": "\\",
    "question_mark": "?",
    "colon": ":",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "enter": "Enter",
    "escape": "Esc",
    "space": "Space",
    "home": "Home",
    "end": "End",
}


class HelpLine(NamedTuple):
    """One binding that is available now."""

    group: str
    key: str
    word: str


def key_names(keys: str) -> str:
    """``plus,shift+left`` as ``+ Shift-←``."""
    return " ".join(_name(key) for key in keys.split(","))


def _name(key: str) -> str:
    *held, last = key.split("+")
    return "-".join([*(name.capitalize() for name in held), NAMES.get(last, last)])


def bindings_of(node: DOMNode) -> list[BindingType]:
    """The bindings of a node: its class's own, then those of the base classes."""
    return [binding for each in type(node).__mro__ for binding in each.__dict__.get("BINDINGS", ())]


def lines_of(node: DOMNode, group: str, bindings: Iterable[BindingType]) -> list[HelpLine]:
    """The lines of bindings that are available now on a screen or a focused pane."""
    tr = tr_of(node)
    return [
        HelpLine(
            tr(group),
            binding.key_display or key_names(binding.key),
            tr(binding.tooltip or binding.description),
        )
        for binding in bindings
        if isinstance(binding, Binding) and _does_something(node, binding.action)
    ]


def _does_something(node: DOMNode, action: str) -> bool:
    space, name, parameters = parse(action)
    return bool(space) or bool(node.check_action(name, parameters))


class HelpScreen(OverScreen[None]):
    """The keys that work now, in columns; if a key occurs twice, the first one counts.

    Args:
        lines: in their order, those of the focused pane first.
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
        """Groups of keys."""
        tr = tr_of(self)
        box = VerticalScroll(classes="box")
        box.border_title = tr("keys")
        box.border_subtitle = tr("Esc closes · j k scroll · Shift-drag selects text")
        with box:
            yield Static(id="keys")

    def on_resize(self, event: events.Resize) -> None:
        """Use as many columns as fit."""
        self.query_one("#keys", Static).update(self._text(min(event.size.width, BOX_CELLS) - AROUND_CELLS))

    def _text(self, width: int) -> Content:
        """All lines as one widget: sixty of them took a tenth of a second to mount."""
        count = max(1, min(MOST_COLUMNS, width // COLUMN_CELLS))
        cells = min(width // count, COLUMN_CELLS + KEY_CELLS)
        rows: list[Content] = []
        for group in dict.fromkeys(line.group for line in self.lines):
            rows += [Content("")] if rows else []
            rows.append(Content.styled(group, "bold $strong"))
            blocks = [_block(line, cells) for line in self.lines if line.group == group]
            rows += [
                Content.assemble(*parts)
                for parts in zip_longest(*_columns(blocks, count), fillvalue=Content(" " * cells))
            ]
        return Content("\n").join(rows)

    def action_close(self) -> None:
        """Back to the dashboard."""
        self.dismiss(None)

    def action_scroll(self, way: int) -> None:
        """Move by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=way, animate=False)


def _block(line: HelpLine, cells: int) -> list[Content]:
    """One binding: its key, and its sentence in as many lines as needed."""
    key = fit(f"  {line.key}", max(KEY_CELLS, cell_len(line.key) + 3))
    words = wrap(line.word, cells - cell_len(key) - 1, 4)
    first = Content.assemble((key, "bold"), fit(words[0] if words else "", cells - cell_len(key)))
    return [first, *(Content(fit(f"{' ' * cell_len(key)}{more}", cells)) for more in words[1:])]


def _columns(blocks: Sequence[list[Content]], count: int) -> list[list[Content]]:
    """The blocks one below the other in columns of similar height, in reading order, without splitting any."""
    left, columns = sum(map(len, blocks)), []
    rest = list(blocks)
    for remaining in range(count, 0, -1):
        column: list[Content] = []
        while rest and (remaining == 1 or len(column) < -(-left // remaining)):
            column += rest.pop(0)
        left -= len(column)
        columns.append(column)
    return columns
