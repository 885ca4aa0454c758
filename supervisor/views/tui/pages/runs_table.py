"""The table of runs, one per line, with a cursor. The browser's screen contains the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.message import Message

from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.views import format as fm
from supervisor.views.model.run_list import (
    GREATEST_FIRST,
    RunList,
    RunRow,
    Scope,
    SortKey,
    batch_of,
    filter_trouble,
    filtered,
    newest_rate,
    ordered,
)
from supervisor.views.tui.charts.hues import run_style
from supervisor.views.tui.panels.state_words import listed_span
from supervisor.views.tui.shell.prompts import AskLine
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, clip, fit, row, spoken, wrap
from supervisor.views.tui.widgets.panel import ListPanel
from supervisor.views.wording.translate import Tr

STATE_CELLS = 15
ID_CELLS = 29
VERDICT_CELLS = 17
PLACE_CELLS = 48
# The marks and the state in front of the columns.
HEAD_CELLS = 3 + STATE_CELLS
# Below these widths (inside the frame) columns are dropped: attempts with batch and learning rate, the name, the duration, the date in the id and
# the total of steps. The best loss and the age are dropped last.
NUMBERS_FROM = 152
NAME_FROM = 127
DURATION_FROM = 110
ROOMY_FROM = 98
WHOLE_FROM = 77
VERDICT_LEAST = 10
DATE_CELLS = len("20261121-1412-")
# Columns with an arrow that shows the sort order. Newest first needs no arrow.
SORTED_COLUMNS = {
    SortKey.STATE: "state",
    SortKey.NAME: "name",
    SortKey.STEP: "step",
    SortKey.VERDICT: "verdict",
    SortKey.LOSS: "best",
    SortKey.DURATION: "took",
    SortKey.SEEN: "seen",
}
TEACH = (
    ("no run yet", ""),
    ("", ""),
    ("start one", "stoker run --nproc-per-node 2 train.py"),
    ("watch a log", "stoker attach train.log"),
    ("try it", "stoker run --config demo/demo"),
)
TEACH_CELLS = 15
TROUBLE_ROWS = 3


class RunsPanel(ListPanel):
    """A table of runs, with a cursor."""

    inverts_cursor = False

    class Opened(Message):
        """Posted when a run is chosen. `beside` lists the runs to plot next to it. If `replay` is true, play its recording."""

        def __init__(self, run: RunPaths, beside: Sequence[RunPaths] = (), *, replay: bool = False) -> None:
            super().__init__()
            self.run = run
            self.beside = beside
            self.replay = replay

    def __init__(self, clock: Callable[[], float], scope: Scope, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._clock = clock
        self.scope = scope
        self.list: RunList | None = None
        self.query_text = ""
        self.sort = SortKey.NEWEST
        self.reverse = False
        self.rows: list[RunRow] = []
        self.chosen: RunPaths | None = None
        self.marked: list[RunPaths] = []
        self._columns: Sequence[Column] = ()

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the keys that apply to the run under the cursor."""
        stop = [("s", "stop", "stop")] if self.can_stop else []
        again = [("r", "continue", "continue_run")] if self.can_continue else []
        return [*stop, *again, *([("c", "compare", "compare")] if self.can_compare else [])]

    @property
    def can_stop(self) -> bool:
        """Whether a keeper can stop the run under the cursor."""
        found = self.row
        return found is not None and found.live and found.state.mode != "observed" and not found.state.is_over

    @property
    def can_continue(self) -> bool:
        """Whether another attempt can be started because the run under the cursor finished without succeeding."""
        found = self.row
        if found is None or found.live or found.state.mode != "launched":
            return False
        condition = found.state.condition
        return isinstance(condition, Finished) and condition.outcome is not Outcome.SUCCEEDED

    @property
    def can_compare(self) -> bool:
        """Whether any run is marked."""
        return bool(self.rows and self.marked)

    @property
    def ready(self) -> bool:
        """Whether anything has been read yet."""
        return self.list is not None

    @property
    def can_widen(self) -> bool:
        """Whether there are runs in other folders."""
        return self.list is not None and bool(self.list.elsewhere)

    @property
    def row(self) -> RunRow | None:
        """The selected row, or None if there are no rows."""
        return self.rows[self.cursor] if self.rows else None

    @property
    def here(self) -> RunRow:
        """The selected row, for an action that is available only if there are rows."""
        return self.rows[self.cursor]

    def renew(self) -> None:
        """Filter, sort and repaint. The cursor stays on its run, or keeps its position if the run is gone."""
        now = self._clock()
        rows = self.list.rows if self.list else ()
        self.rows = ordered(
            filtered(rows, self.query_text, now, self._state_words),
            self.sort,
            now,
            reverse=self.reverse,
            name=lambda found: found.given or found.state.name,
            state=lambda found: self._state_words(found)[0],
        )
        at = next((at for at, found in enumerate(self.rows) if found.run == self.chosen), self.cursor)
        self.go_to(at)

    def _state_words(self, found: RunRow) -> tuple[str, str]:
        """Return the state column's text in English and in the user's language, without the glyph."""
        span = listed_span(found, self._clock())
        return span.text[2:], spoken(span, self.tr).text[2:]

    def go_to(self, index: int) -> None:
        """Select the run in a row."""
        if self.rows:
            self.chosen = self.rows[min(max(index, 0), len(self.rows) - 1)].run
        super().go_to(index)

    def count(self) -> int:
        """Return the number of runs that match the filter."""
        return len(self.rows)

    def titles(self) -> tuple[Row, Row]:
        """Return titles with the number of runs, the filter, and the sort order."""
        total = len(self.list.rows) if self.list else 0
        tr = self.tr
        left = [Span(tr("runs"), TextStyle.STRONG), *self._scope_text()]
        if self.query_text:
            left.append(Span(f" · {self.query_text}", TextStyle.LIVE))
        chosen = self.chosen if self.scope.everywhere and self.can_widen else None
        where = f"{fm.near_path(str(chosen.root.parent))} · " if chosen is not None else ""
        reading = "" if self.list is None or self.list.complete else " · reading…"
        order = f"{self.sort} {self._arrow()}" if self.reverse else self.sort
        counted = tr(f"{len(self.rows)} of {total} · by {order}{reading}")
        return tuple(left), row(Span(f"{where}{counted}", TextStyle.DIM))

    def _scope_text(self) -> Row:
        """Return the listed runs' folder and the key that widens or narrows the list."""
        place = self.scope.place
        if place is None:
            return EMPTY
        more = self.list.elsewhere if self.list is not None else 0
        if self.scope.everywhere:
            where, key = " in all folders", " (a: this folder only)"
        else:
            folder = fm.near_path(str(place))
            # The end of the path identifies the folder, and the key after the path must stay visible.
            folder = folder if len(folder) <= PLACE_CELLS else f"…{folder[1 - PLACE_CELLS :]}"
            where, key = f" in {folder}", f" · {more} in other folders (a: all)"
        return row(Span(self.tr(where), TextStyle.PLAIN), Span(self.tr(key) if more else "", TextStyle.DIM))

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the heading and the visible rows around the cursor."""
        if self.list is not None and not self.list.rows and self.list.complete:
            lines = [(f"  {fit(self.tr(text), TEACH_CELLS)}{how}", how) for text, how in TEACH]
            styled = [Span(line, TextStyle.DIM if how else TextStyle.STRONG) for line, how in lines]
            return [EMPTY, *map(row, styled)]
        if not self.rows:
            trouble = filter_trouble(self.query_text)
            text = self.tr(trouble or "no run matches; / changes the filter, Esc clears it")
            style = TextStyle.WARN if trouble else TextStyle.DIM
            return [EMPTY, *(row(Span(f"  {line}", style)) for line in wrap(text, width - 4, TROUBLE_ROWS))]
        longest = max(cell_len(self.tr(found.reason)) for found in self.rows)
        self._columns = columns_of(width, longest)
        detail = self._detail(width) if height > 2 else EMPTY
        room = height - bool(detail)
        rows = super().body(width, room)
        return [*rows, *([EMPTY] * (room - len(rows))), detail] if detail else rows

    def heading(self, width: int) -> Sequence[Row]:
        """Return the column names. An arrow marks the sort column and points up if the lowest value comes first."""
        texts = {name: self.tr(name) for name in ("state", *(column.name for column in self._columns))}
        if sorted_by := SORTED_COLUMNS.get(self.sort):
            texts[sorted_by] = texts.get(sorted_by, "") + self._arrow()
        heading = fit(f"    {texts['state']}", HEAD_CELLS) + laid(self._columns, texts)
        return [clip(row(Span(heading, TextStyle.DIM)), width)]

    def item(self, index: int, width: int) -> Row:
        """Return a run's row."""
        found, now, tr = self.rows[index], self._clock(), self.tr
        condition = spoken(listed_span(found, now), tr)
        here = found.run == self.chosen
        text = laid(self._columns, _texts(found, width, now, tr))
        head = fit(condition.text, HEAD_CELLS - 3) + " "
        spans = row(
            Span("▸" if here else " ", TextStyle.KEY),
            self.mark_of(found.run),
            Span(head, condition.style),
            Span(text, TextStyle.STRONG if here else TextStyle.PLAIN),
        )
        return clip(spans, width)

    def rest(self, first: int, width: int) -> Row:
        """Return the row itself instead of a "more" line, because the title already counts all runs."""
        return self.item(first, width)

    def _arrow(self) -> str:
        return "▼" if (self.sort in GREATEST_FIRST) != self.reverse else "▲"

    def sort_by(self, key: SortKey, *, reverse: bool = False) -> None:
        """Sort by a column, in its default order or reversed."""
        self.sort, self.reverse = key, reverse
        self.renew()

    def filter_by(self, text: str) -> None:
        """Show only the runs that match a filter, or all runs if it is empty."""
        self.query_text, self.cursor = text.strip(), 0
        self.renew()

    def open_filter(self, changed: Callable[[], object]) -> None:
        """Prompt for a filter and apply it as the user types. Canceling restores the previous one."""
        before, chosen = self.query_text, self.chosen

        def typed(text: str) -> str:
            self.filter_by(text)
            changed()
            return filter_trouble(self.query_text)

        def closed(text: str | None) -> None:
            if text is None:
                self.chosen = chosen
            typed(before if text is None else text)
            if not self.rows:  # a cursor moved by partial input was not a choice
                self.chosen = chosen

        hint = "words, state:failed, failure:cuda_oom, loss<2.5, yesterday"
        self.app.push_screen(AskLine("filter", before, typed, hint), closed)

    def mark(self, run: RunPaths) -> None:
        """Mark a run for comparison, or unmark it."""
        self.marked = (
            [one for one in self.marked if one != run] if run in self.marked else [*self.marked, run]
        )
        self.repaint()

    def mark_of(self, run: RunPaths) -> Span:
        """Return a run's mark, in the color its curves get when compared with the open run."""
        if run not in self.marked:
            return Span(" ")
        return Span("◆", run_style(self.marked.index(run) + 1))

    def _detail(self, width: int) -> Row:
        """Return the selected run's failure reason (if the verdict column truncates it), command and note, if any."""
        found = self.rows[self.cursor]
        own = found.run.run_id if found.given and width < NAME_FROM else ""  # the given name replaces the id
        reason = self.tr(found.reason)
        room = next(column.cells for column in self._columns if column.name == "verdict")
        parts = [
            own,
            reason if cell_len(reason) > room else "",
            " ".join(found.command),
            f"{self.tr('note')}: {found.note}" if found.note else "",
        ]
        text = " · ".join(filter(None, parts))
        return clip(row(Span(f"  {text}", TextStyle.DIM)), width) if text else EMPTY

    def click_row(self, index: int) -> None:
        """Select the clicked run, or open it if it is already selected."""
        if self.rows[index].run == self.chosen:
            self.post_message(self.Opened(self.rows[index].run))
        else:
            self.go_to(index)


class Column(NamedTuple):
    """A table column. `cells` is its width, and `gap` is the number of extra spaces before it."""

    name: str
    cells: int
    right: bool = False
    gap: int = 0


def columns_of(width: int, longest: int) -> Sequence[Column]:
    """Return the columns that fit in `width` cells. The verdict column (`longest` is its widest text) takes what remains."""
    room = width - HEAD_CELLS
    roomy = width >= ROOMY_FROM
    id_cells = ID_CELLS if roomy else ID_CELLS - DATE_CELLS
    if width < WHOLE_FROM:
        id_cells = max(min(id_cells, room - 1 - VERDICT_LEAST), 1)
    step_cells = 15 if roomy else 8 if width >= WHOLE_FROM else 7
    wanted = (
        (0, Column("run", id_cells)),
        (NAME_FROM, Column("name", 16)),
        (0, Column("step", step_cells, right=True)),
        (WHOLE_FROM, Column("verdict", VERDICT_CELLS, gap=2)),
        (WHOLE_FROM, Column("best", 8, right=True)),
        (DURATION_FROM, Column("took", 11, right=True)),
        (WHOLE_FROM, Column("seen", 5, right=True)),
        (NUMBERS_FROM, Column("tries", 5, right=True)),
        (NUMBERS_FROM, Column("batch", 8, right=True)),
        (NUMBERS_FROM, Column("lr", 8, right=True)),
    )
    found = [column for least, column in wanted if width >= least]
    left = room - _cells_of(found)
    if width < WHOLE_FROM:
        return [*found, Column("verdict", max(left - 1, 1))]
    at = next(at for at, column in enumerate(found) if column.name == "verdict")
    found[at] = found[at]._replace(cells=VERDICT_CELLS + max(min(left, longest - VERDICT_CELLS), 0))
    return found


def laid(columns: Sequence[Column], texts: Mapping[str, str]) -> str:
    """Place each text in its column."""
    return " ".join(
        " " * column.gap + fit(texts[column.name], column.cells, right=column.right) for column in columns
    )


def _cells_of(columns: Sequence[Column]) -> int:
    return sum(column.gap + column.cells + 1 for column in columns) - 1


def _texts(found: RunRow, width: int, now: float, tr: Tr) -> Mapping[str, str]:
    """Return a run's cell contents, keyed by column name."""
    state = found.state
    total = f"/{fm.whole(state.planned_steps)}" if state.planned_steps and width >= ROOMY_FROM else ""
    step = f"{fm.whole(found.step)}{'+' if found.is_cut else ''}"
    return {
        "run": _run_text(found, width),
        "name": found.given or state.name,
        "step": f"{step}{total}",
        "verdict": tr(found.reason) or fm.DASH,
        "best": fm.loss(state.best_loss),
        "took": fm.duration(found.duration_s(now)),
        "seen": fm.age(None if state.last_t is None else state.now(now) - state.last_t),
        "tries": str(len(state.attempts)),
        "batch": batch_of(state.attempt.shown_batch if state.attempt else None),
        "lr": newest_rate(state, found.command),
    }


def _run_text(found: RunRow, width: int) -> str:
    """Return the run's id. If there is no name column, the user's name replaces the date or the whole id."""
    run_id = found.run.run_id
    if found.given and width < NAME_FROM:
        return f"{fm.short_id(run_id)} · {found.given}" if width >= ROOMY_FROM else found.given
    return run_id if width >= ROOMY_FROM or len(run_id) <= DATE_CELLS else run_id[DATE_CELLS:]
