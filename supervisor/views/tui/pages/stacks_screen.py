"""The stacks that a verdict rests on, on the whole screen: at the frame of the rank that the others waited for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from supervisor.run.regular import open_regular
from supervisor.text.decode import clean
from supervisor.views.logs.query import Query
from supervisor.views.tui.logs.rows import marked
from supervisor.views.tui.pages.text_page import ScrolledPanel, open_page_search
from supervisor.views.tui.shell.screen_base import KeyScreen
from supervisor.views.tui.widgets.footer import FooterBar, Hint
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, fit, row, wrap

NUMBER_CELLS = 6
READ_BYTES = 1 << 20
SHOWN_BYTES = 2000
HEAD = "== "
ABOVE = 8


def read_stacks(path: Path) -> tuple[str, ...]:
    """The lines of a stack file, fit to be shown; of a very long one the first.

    Raises:
        OSError: it is gone, or may not be read.
    """
    with open_regular(path) as file:
        return tuple(clean(raw, SHOWN_BYTES) for raw in file.read(READ_BYTES).splitlines())


class StackPage(ScrolledPanel):
    """The text of a round of stacks; `at` is the line that a verdict points at, from 1."""

    def __init__(self, name: str, lines: Sequence[str], at: int | None, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.name_shown, self.lines, self.at = name, tuple(lines), at
        self._is_open = False  # it opens where the line is in sight, which takes the height

    @property
    def ready(self) -> bool:
        """The text came with it."""
        return True

    def titles(self) -> tuple[Row, Row]:
        """Which file, whose stack is in sight, how far it was scrolled."""
        seen = self.at is not None and self._top < self.at <= self._top + self._height
        head = self._head_above((self.at or 1) - 1 if seen else self._top)
        left = row(
            Span(self.tr("stacks"), TextStyle.STRONG), Span(f" · {self.name_shown}{head}", TextStyle.DIM)
        )
        last = min(self._top + self._height, len(self.lines))
        if self.search:
            return left, self.search.title(self.tr)
        return left, row(Span(self.tr(f"{self._top + 1}-{last} of {len(self.lines)}"), TextStyle.DIM))

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The lines in sight."""
        self._height = height
        if not self._is_open:
            self._is_open = True
            self._top = (self.at or 1) - 1 - min(ABOVE, height // 3)
        self._top = top = min(max(self._top, 0), max(len(self.lines) - height, 0))
        rows: list[Row] = []
        for number, text in enumerate(self.lines[top : top + height], start=top + 1):
            here = number == self.at
            mark = Span(
                f"{'▸' if here else ' '}{number:>{NUMBER_CELLS - 2}} ",
                TextStyle.BAD if here else TextStyle.FRAME,
            )
            shown = self._first_line(text, width) if number == 1 else fit(text, width - NUMBER_CELLS).rstrip()
            line = row(Span(shown, TextStyle.STRONG if here else self._ink(number, text)))
            rows.append((mark, *marked(line, self.search.query)))
        return rows

    def texts(self) -> Sequence[str]:
        """All lines."""
        return self.lines

    def _first_line(self, text: str, width: int) -> str:
        """What all ranks do is a sentence of ours."""
        return (wrap(self.tr(text), width - NUMBER_CELLS, 1) or [""])[0]

    def _ink(self, number: int, text: str) -> TextStyle:
        if text.startswith(HEAD) or number == 1:
            return TextStyle.KEY
        return TextStyle.DIM if text.startswith(" ") else TextStyle.PLAIN

    def _head_above(self, index: int) -> str:
        heads = [text for text in self.lines[: index + 1] if text.startswith(HEAD)]
        return f" · {heads[-1].removeprefix(HEAD).split(',')[0]}" if heads else ""

    def to_rank(self, way: int) -> None:
        """The stack of the next rank, or of the one before."""
        heads = [index for index, text in enumerate(self.lines) if text.startswith(HEAD)]
        later = [index for index in heads if index > self._top]
        earlier = [index for index in heads if index < self._top]
        self._top = (later[0] if later else self._top) if way > 0 else (earlier[-1] if earlier else 0)
        self.repaint()


class StackScreen(KeyScreen, Screen[bool]):
    """Shows stacks; closes with True if the log should open next.

    Args:
        name: the file, as a person may look for it.
        lines: its text.
        at: the line that the verdict points at, from 1.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c", "close", "back", key_display="Esc"),
        Binding("n", "match(1)", "next match"),
        Binding("N", "match(-1)", "match before"),
        Binding("right_square_bracket,n", "rank(1)", "next rank", key_display="]"),
        Binding("left_square_bracket,N", "rank(-1)", "rank before", key_display="["),
        Binding("slash", "search", "search", key_display="/"),
        Binding("L", "log", "log"),
    ]

    def __init__(self, name: str, lines: Sequence[str], at: int | None) -> None:
        super().__init__()
        self._page = StackPage(name, lines, at, id="stackpage")

    def compose(self) -> ComposeResult:
        """The text, the keys."""
        yield self._page
        yield FooterBar(id="footer")

    def on_mount(self) -> None:
        """The keys belong to the text."""
        self._page.focus()
        self._offer()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's own signature
        """Matches are there while something is searched."""
        return bool(self._page.search) if action == "match" else True

    def _offer(self) -> None:
        hints = [
            Hint(binding.key_display or binding.key, binding.description, binding.action)
            for binding in self.BINDINGS
            if isinstance(binding, Binding) and self.check_action(*parse(binding.action)[1:])
        ]
        if self._page.search:
            hints[0] = hints[0]._replace(word="close search")
        self.query_one("#footer", FooterBar).offer(tuple(hints[1:]), hints[0])

    def action_search(self) -> None:
        """Search the stacks."""
        open_page_search(self.app, self._page, self._offer)

    def action_match(self, way: int) -> None:
        """Another match."""
        self._page.search.step(way)

    def action_close(self) -> None:
        """The search, then this."""
        if self._page.search:
            self._page.search.begin(Query(), 0)
            self._offer()
        else:
            self.dismiss(False)

    def action_log(self) -> None:
        """On to the log."""
        self.dismiss(True)

    def action_rank(self, way: int) -> None:
        """The stack of another rank."""
        self._page.to_rank(way)
