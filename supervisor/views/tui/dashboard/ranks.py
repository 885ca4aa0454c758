"""The ranks table: who is where, who lags, who waits for data, who is gone; of a run on several nodes below their nodes."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from msgspec.structs import replace
from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.run import state as st
from supervisor.views import format as fm
from supervisor.views.logs.sources import rank_label
from supervisor.views.model.history import median
from supervisor.views.model.snapshot import Node, Rank, Snapshot
from supervisor.views.model.step_pace import SILENT_GAPS, ranks_behind
from supervisor.views.tui.dashboard.node_rows import (
    NodeSummary,
    beat_age,
    links_text,
    node_state,
    ranks_of,
    skew_of,
    skew_text,
    slow_rank_of,
    summary_of,
    wait_text,
)
from supervisor.views.tui.dashboard.state_words import rank_state
from supervisor.views.tui.saved_layout import memory_of
from supervisor.views.tui.widgets.lists import ListPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row, spark
from supervisor.views.wording.kinds import reading_text

# A rank that waits for its data this long and ten times the median is marked.
DATA_WAIT_S = 0.05
# A rank's last line is shown if at least this many cells are left beside the other columns.
LINE_LEAST = 24
LINE = "last line"
# Up to so many rows of nodes and ranks all nodes are open; above, each is one row until a person opens it.
OPEN_ROWS = 20
# What the frame and the pane's number take of the line with the two titles.
TITLE_EDGE_CELLS = 13


class Item(NamedTuple):
    """A row: a rank, or the node (of several) that the ranks below it are on. `state` and `samples`: of that node."""

    rank: st.RankState | None
    state: st.RunState
    samples: Mapping[str, Rank]
    node: Node | None = None

    @property
    def sample(self) -> Rank | None:
        """The newest readings of the rank."""
        return self.samples.get(rank_label(self.rank)) if self.rank is not None else None


@dataclass(frozen=True, slots=True)
class Medians:
    """What a rank is compared with."""

    step_time_s: float | None
    data_wait_s: float | None


class RanksPanel(ListPanel, can_focus=True):
    """One row a rank of the newest attempt; `take_lines` gives it what ranks write. Several nodes have a row each, to be folded."""

    number = 3
    uses_clock = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "log of this rank", show=False),
        Binding("o", "sort", "sort by the next column", show=False),
        Binding("space", "fold", "fold or unfold this node", show=False),
        Binding("left,h", "fold(-1)", "fold this node", show=False),
        Binding("right", "fold(1)", "unfold this node", show=False),
        Binding("minus", "fold_all(True)", "fold all nodes", show=False),
        Binding("plus,equals_sign", "fold_all(False)", "unfold all nodes", show=False),
    ]

    class Chosen(Message):
        """A rank, or a node, whose log is wanted."""

        def __init__(self, who: str, node: int | None = None) -> None:
            super().__init__()
            self.who = who
            self.node = node

    class Folded(Message):
        """Another number of rows is there."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._items: list[Item] = []
        self._summaries: dict[int, tuple[Node, NodeSummary]] = {}
        self._unusual: set[int] = set()  # nodes that are folded where others are not, or the other way round
        self._all_folded: bool | None = None  # as a person chose; None: by how many rows there would be
        self._many: tuple[Snapshot, bool] | None = None
        self._medians = Medians(None, None)
        # Ranks that log no more while others do: of a few that is a sign, of most a habit of the script.
        self._silent = self._terse = frozenset[str]()
        self._last: Mapping[str, str] = {}
        self.by = "rank"

    def take_lines(self, last: Mapping[str, str]) -> None:
        """Keep what each rank wrote last; shown with the next paint, at once where none was known or no paint is due."""
        if last == self._last:
            return
        is_first, self._last = not self._last, last
        if is_first or (self.view is not None and self.view.snapshot.state.is_over):
            self.repaint()

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """Also the other nodes."""
        return (*snapshot.facts(), snapshot.nodes)

    def titles(self) -> tuple[Row, Row]:
        """How many live."""
        if self.view is None:
            return EMPTY, EMPTY
        snapshot = self.view.snapshot
        nodes = snapshot.nodes
        ranks = [rank for state in _states(snapshot) for rank in ranks_of(state, snapshot.state)]
        attempt = snapshot.state.attempt
        well = attempt is not None and (attempt.exit_code == 0 or attempt.ended_on_request)
        gone = 0 if well else sum(1 for rank in ranks if rank.exited and rank.exit_code != 0)
        by = self.tr(f" · by {self.by}") if self.by != "rank" else ""
        count = f"ranks · {len(ranks)} on {len(nodes)} nodes" if nodes else f"ranks · {len(ranks)}"
        left = row(Span(self.tr(count), TextStyle.STRONG), Span(by, TextStyle.DIM))
        if gone:
            return left, row(Span(self.tr(f"✗ {gone} gone"), TextStyle.BAD))
        silent = tuple(
            node.number
            for node in nodes
            if node_state(node, snapshot, self._wall)[1] is TextStyle.BAD and not snapshot.state.is_over
        )
        if silent:
            return left, row(Span(self.tr(f"⚠ no sign of node {fm.ranges(silent)}"), TextStyle.BAD))
        found = [each for state in _states(snapshot) if (each := slow_rank_of(state)) is not None]
        slow = tuple(sorted(each.rank for each in found if each.rank is not None))
        if slow:
            text = self.tr(f"⚠ slow: {fm.ranges(slow)}")
            if len(found) == 1 and found[0].lost_s > 0:
                why = self.tr(f"⚠ slow: {slow[0]}, others wait {wait_text(found[0].lost_s)}")
                text = why if cell_len(why) + cells(left) + TITLE_EDGE_CELLS <= self.size.width else text
            return left, row(Span(text, TextStyle.WARN))
        if self._silent:
            names = fm.ranges(tuple(sorted(int(name) for name in self._silent if name.isdigit())))
            return left, row(Span(self.tr(f"⚠ silent: {names}"), TextStyle.WARN))
        return left, EMPTY

    @property
    def _wall(self) -> float:
        """This machine's wall time."""
        assert self.view is not None
        return self.view.now + self.view.snapshot.state.clock_ahead_s

    def heading(self, width: int) -> Sequence[Row]:
        """Names of the columns."""
        several = self.view is not None and bool(self.view.snapshot.nodes)
        text = ""
        for name, size in self._columns(width):
            shown = self.tr("node" if several and name == "rank" else name)
            text += fit(shown, size, right=name not in LEFT and not (several and name == "rank")) + " "
        return [row(Span(text, TextStyle.DIM))]

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The table; if its rows have no space for last lines, that of the rank under the cursor stands below, where no rank's row is hidden by it."""
        has_line = any(name == LINE for name, _ in self._columns(width))
        heading = len(self.heading(width))
        detail = self.has_focus and not has_line and height > heading + self.count()
        rows = list(super().body(width, height - 1 if detail else height))
        if not detail or not self._items:
            return rows
        rows += [EMPTY] * (height - 1 - len(rows))
        here = self._items[self.cursor]
        if here.rank is None:
            assert here.node is not None
            name, text = f"node {here.node.number}", self._about(here.node, width)
        else:
            who = rank_label(here.rank)
            name, text = f"rank {who}", self._last.get(who, self.tr("has not written a line yet"))
        return [*rows, row(Span(self.tr(name) + "  ", TextStyle.STRONG), Span(text.strip()))]

    def _about(self, node: Node, width: int) -> str:
        """A node's name and all that its interfaces carry."""
        return f"{node.state.host}  {links_text(self._summary(node).links, max(width - 24, 10))}"

    def _summary(self, node: Node) -> NodeSummary:
        """Of a node; made once for each reading of it."""
        assert self.view is not None
        known = self._summaries.get(node.number)
        if known is None or known[0] is not node:
            known = (node, summary_of(node, self.view.snapshot.state))
            self._summaries[node.number] = known
        return known[1]

    def count(self) -> int:
        """One row a rank and a node, or one that says that there is none."""
        assert self.view is not None
        snapshot = self.view.snapshot
        ranks = dict(_samples(snapshot))
        samples = list(ranks.values())
        trains = isinstance(snapshot.state.condition, st.Running) and not reading_text(snapshot.state)
        behind, is_habit = ranks_behind(ranks) if trains else (frozenset[str](), False)
        self._silent, self._terse = (frozenset[str](), behind) if is_habit else (behind, frozenset[str]())
        self._medians = Medians(_median(samples, "step_time_s"), _median(samples, "data_wait_s"))
        self._items = list(self._rows_of(snapshot))
        return max(len(self._items), 1)

    def needed_rows(self, snapshot: Snapshot) -> int:
        """How many rows the table has, as far as nodes are folded."""
        ranks = [len(ranks_of(state, snapshot.state)) for state in _states(snapshot)]
        if not snapshot.nodes:
            return sum(ranks)
        opened = (not self._is_folded(node.number, snapshot) for node in snapshot.nodes)
        return len(ranks) + sum(count for count, is_open in zip(ranks, opened, strict=True) if is_open)

    def _rows_of(self, snapshot: Snapshot) -> Iterator[Item]:
        if not snapshot.nodes:
            items = [
                Item(rank, snapshot.state, snapshot.ranks)
                for rank in ranks_of(snapshot.state, snapshot.state)
            ]
            yield from _ordered(items, self.by, self._last, is_live=snapshot.keeper_alive)
            return
        for node in self._ordered_nodes(snapshot):
            yield Item(None, node.state, node.ranks, node)
            if not self._is_folded(node.number, snapshot):
                items = [
                    Item(rank, node.state, node.ranks, node) for rank in ranks_of(node.state, snapshot.state)
                ]
                yield from _ordered(items, self.by, self._last, is_live=snapshot.keeper_alive)

    def _ordered_nodes(self, snapshot: Snapshot) -> Sequence[Node]:
        """By the column that the ranks are sorted by: what it shows of a node, those of which it is not known last."""
        if self.by in {"rank", "pid", LINE}:
            return snapshot.nodes
        name, greatest = ORDERS[self.by]

        def order(node: Node) -> tuple[bool, float | str]:
            if self.by == "state":
                word, style = node_state(node, snapshot, self._wall)
                return style is not TextStyle.BAD, word
            summary = self._summary(node)
            value = summary.slowest_s if self.by == "skew" else summary.values.get(name)
            if self.by == "seen":
                value = node.beat_t
            return value is None, 0.0 if value is None else -value if greatest else value

        return sorted(snapshot.nodes, key=order)

    # -- folding -------------------------------------------------------------------------------------------

    def _is_folded(self, number: int, snapshot: Snapshot) -> bool:
        folded = self._all_folded
        if folded is None:
            if self._many is None or self._many[0] is not snapshot:
                ranks = sum(len(ranks_of(node.state, snapshot.state)) for node in snapshot.nodes)
                self._many = snapshot, ranks + len(snapshot.nodes) > OPEN_ROWS
            folded = self._many[1]
        return folded != (number in self._unusual)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's own
        """There is nothing to fold on one node."""
        return not action.startswith("fold") or bool(self.view is not None and self.view.snapshot.nodes)

    def action_fold(self, way: int = 0) -> None:
        """Fold (-1) or unfold (1) the node that the cursor is on; 0: the other of the two."""
        node = self._items[self.cursor].node if self.cursor < len(self._items) else None
        if node is None or self.view is None:
            return
        folded = self._is_folded(node.number, self.view.snapshot)
        if way == 0 or folded == (way > 0):
            self._unusual ^= {node.number}
        if not folded and way <= 0:
            self.cursor = next(i for i, item in enumerate(self._items) if item.node is node)
        self._refold()

    def action_fold_all(self, folded: bool) -> None:
        """Fold or unfold all nodes."""
        node = self._items[self.cursor].node if self.cursor < len(self._items) else None
        self._all_folded, self._unusual = folded, set()
        self.count()
        self.cursor = next(
            (i for i, item in enumerate(self._items) if node is not None and item.node is node), 0
        )
        self._refold()

    def _refold(self) -> None:
        """Another number of rows: the panes may need another height."""
        self.post_message(self.Folded())
        self.repaint()

    def item(self, index: int, width: int) -> Row:
        """One rank."""
        assert self.view is not None
        if not self._items:
            attempt = self.view.snapshot.state.attempt
            stepped = attempt is not None and attempt.last_step is not None
            text = "no process says its rank" if stepped else "no rank has started yet"
            return row(Span(self.tr(text), TextStyle.DIM))
        item = self._items[index]
        fields = self._of_rank(item) if item.rank is not None else self._of_node(item, width)
        spans: list[Span] = []
        for name, size in self._columns(width):
            span = fields.get(name, Span(""))
            is_left = name in LEFT or (name == "rank" and item.node is not None)
            spans += [Span(fit(span.text, size, right=not is_left), span.style), Span(" ")]
        return tuple(spans)

    def rest(self, first: int, width: int) -> Row:
        """How many there are, and how long each takes for a step, side by side: one that lags stands out."""
        samples = [item.sample for item in self._items[first:]]
        took = [sample.values.get("step_time_s") or sample.pace_s for sample in samples if sample is not None]
        took += [
            self._summary(i.node).values["step_time_s"]
            for i in self._items[first:]
            if i.rank is None and i.node
        ]
        known = [value for value in took if value is not None]
        text = super().rest(first, width)
        if len(known) < 2:
            return text
        name = Span(f"  {self.tr('ms/step')} ", TextStyle.DIM)
        line = spark(known, min(len(known), width - cells((*text, name))), pick=max)
        return (*text, name, Span(line, TextStyle.PACE))

    def action_choose(self) -> None:
        """Show the log of the rank under the cursor, or of all ranks of the node."""
        if self._items:
            rank, node = self._items[self.cursor].rank, self._items[self.cursor].node
            if rank is not None:
                self.post_message(self.Chosen(rank_label(rank)))
            elif node is not None:
                self.post_message(self.Chosen("", node.number))

    def action_sort(self) -> None:
        """Sort by the next column that is shown: what stands out comes first."""
        names = [name for name, _ in self._columns(self.size.width - 2) if name in ORDERS]
        self.sort_by(names[(names.index(self.by) + 1) % len(names)] if self.by in names else "rank")

    def sort_by(self, name: str) -> None:
        """Sort by a column, and remember it."""
        self.by = name
        self.cursor = 0
        memory = memory_of(self.app)
        memory.remember(replace(memory.kept, ranks_by=name))
        self.repaint()

    def on_mount(self) -> None:
        """Sorted as last time."""
        kept = memory_of(self.app).kept
        self.by = kept.ranks_by if kept.ranks_by in ORDERS else "rank"

    def on_click(self, event: events.Click) -> None:
        """A click on a column's name sorts by it; on a rank it puts the cursor, on a node it folds or unfolds it."""
        if event.y != (1 if self.framed else 0):
            super().on_click(event)
            at = event.y - (1 if self.framed else 0) - self._heading_rows + self._top
            if 0 <= at < len(self._items) and self._items[at].rank is None:
                self.action_fold()
            return
        event.stop()
        end = 1 if self.framed else 0
        for name, size in self._columns(self.size.width - 2):
            end += size + 1
            if event.x < end:
                if name in ORDERS:
                    self.sort_by(name)
                return

    def _columns(self, width: int) -> list[tuple[str, int]]:
        snapshot = self.view.snapshot if self.view is not None else None
        samples = _samples(snapshot) if snapshot is not None else ()
        reported = {name for _, rank in samples for name in rank.values}
        return _columns(width, several=snapshot is not None and bool(snapshot.nodes), reported=reported)

    def _of_node(self, item: Item, width: int) -> dict[str, Span]:
        """A node's row."""
        node, view = item.node, self.view
        assert view is not None
        assert node is not None
        summary, snapshot = self._summary(node), view.snapshot
        word, style = node_state(node, snapshot, self._wall)
        skew = skew_of(summary.slowest_s, self._medians.step_time_s)
        slow = slow_rank_of(item.state)
        late = slow is not None and slow.rank is not None
        starved = _starves(summary.values, self._medians)
        size = dict(self._columns(width))
        sign = "▸" if self._is_folded(node.number, snapshot) else "▾"
        beat_s = beat_age(node, self._wall)
        ranks = f"{summary.living}/{summary.ranks}"
        over = snapshot.state.is_over
        return {
            "rank": Span(f"{sign} n{node.number} {item.state.host}", TextStyle.STRONG),
            "state": Span(self.tr(word), style),
            "ranks": Span(
                ranks,
                TextStyle.WARN if summary.living < summary.ranks and not over else TextStyle.PLAIN,
            ),
            "step": Span(fm.whole(summary.values["step"])),
            "ms/step": Span(_milli(summary.values["step_time_s"])),
            "skew": Span(skew_text(skew, slow, is_named=late), TextStyle.WARN if late else TextStyle.PLAIN),
            "data": _waited(summary.values["data_wait_s"], starved=starved),
            "mem": Span(fm.memory(summary.values["memory_used_bytes"])),
            "cpu": Span(fm.percent(summary.values["cpu_ratio"])),
            "gpu": Span(fm.percent(summary.gpu_ratio) if summary.gpu_ratio is not None else fm.DASH),
            NETWORK: Span(
                links_text(summary.links, size.get(NETWORK, 10)), TextStyle.DIM if over else TextStyle.PLAIN
            ),
            "seen": _age(beat_s, ended=over),
        }

    def _late_after_s(self, item: Item) -> float:
        """The age of a rank's last step from which on it is marked: one that logs every ten minutes is not late after one."""
        assert item.rank is not None
        name, usual = rank_label(item.rank), item.sample.cadence if item.sample is not None else None
        if name in self._silent or name in self._terse:
            return 0.0 if name in self._silent else math.inf
        return max(fm.VERY_STALE_S, SILENT_GAPS * usual[0] if usual is not None else 0.0)

    def _of_rank(self, item: Item) -> dict[str, Span]:
        """A rank's row."""
        view, medians = self.view, self._medians
        rank, sample = item.rank, item.sample
        assert view is not None
        assert rank is not None
        snapshot = view.snapshot
        values = sample.values if sample else {}
        alone = len(self._items) == 1 and "step" not in values
        if (
            alone
        ):  # what is told of the job is told of its one rank; a process that is only measured tells no step
            values = {"step": snapshot.step, "step_time_s": snapshot.latest("step_time_s"), **values}
        step_time = values.get("step_time_s")
        wait = values.get("data_wait_s")
        pace = sample.pace_s if sample is not None else None
        if alone or _reports_alone(snapshot, sample):  # the same number as in the header
            took, is_derived = snapshot.step_time_s
            step_time, pace = (None, took) if is_derived else (took, None)
        skew = skew_of(step_time, medians.step_time_s)
        memory = values.get("memory_used_bytes") or values.get("rss_bytes")
        seen_t = _seen_t(item)
        seen = view.now - seen_t if seen_t else None
        word, style = rank_state(rank, item.state, is_live=snapshot.keeper_alive)
        slow = slow_rank_of(item.state)
        late = slow is not None and slow.rank is not None and slow.rank == rank.rank
        indent = "    " if item.node is not None else ""
        return {
            "rank": Span(indent + rank_label(rank), TextStyle.STRONG),
            "state": Span(self.tr(word), style),
            "step": Span(fm.whole(values.get("step"))),
            # By when lines came all ranks of a job are as slow as the slowest: that is no skew.
            "ms/step": Span(fm.about(_milli)(pace) if pace and not step_time else _milli(step_time)),
            "skew": Span(skew_text(skew, slow, is_named=late), TextStyle.WARN if late else TextStyle.PLAIN),
            "data": _waited(wait, starved=_starves(values, medians)),
            "compute": Span(fm.seconds(values.get("compute_s"))),
            "mem": Span(fm.memory(memory)),
            "peak": Span(fm.memory(values.get("memory_peak_bytes"))),
            "cpu": Span(fm.percent(values.get("cpu_ratio"))),
            "pid": Span(str(rank.pid or fm.DASH), TextStyle.DIM),
            "seen": _age(seen, ended=rank.exited, late_s=self._late_after_s(item)),
            LINE: Span(self._last.get(rank_label(rank), "").strip(), TextStyle.DIM),
        }


# Name and width, in the order in which they are shown; those with a larger need come only where there is room.
COLUMNS = (
    ("rank", 5, 0),
    ("state", 11, 0),
    ("step", 7, 0),
    ("ms/step", 7, 0),
    ("skew", 6, 53),
    ("data", 8, 62),
    ("compute", 8, 86),
    ("mem", 5, 0),
    ("peak", 5, 92),
    ("cpu", 6, 69),
    ("pid", 7, 77),
    ("seen", 5, 0),
)
# Columns that are shown only if some rank reports their value.
REPORTED = {"data": "data_wait_s", "compute": "compute_s", "peak": "memory_peak_bytes"}
NETWORK = "network"
# The same of several nodes: a node has all but a pid, a rank all but a card, a network and other ranks.
OF_NODES = (
    ("rank", 9, 0),
    ("state", 10, 0),
    ("ranks", 5, 64),
    ("step", 6, 0),
    ("ms/step", 7, 72),
    ("skew", 6, 53),
    ("data", 8, 98),
    ("mem", 5, 78),
    ("cpu", 6, 106),
    ("gpu", 5, 42),
    (NETWORK, 10, 58),
    ("pid", 7, 114),
    ("seen", 5, 0),
)
# The names of nodes and what their interfaces carry get so many cells where there are any left.
WIDER = {"rank": 12, NETWORK: 24}
LEFT = frozenset(["state", LINE, NETWORK])


def _milli(value_s: float | None) -> str:
    return fm.whole(value_s * 1000) if value_s else fm.DASH


def _starves(values: Mapping[str, float | None], medians: Medians) -> bool:
    """Whether a rank waits for its data."""
    wait = values.get("data_wait_s")
    return wait is not None and wait > max(DATA_WAIT_S, 10 * (medians.data_wait_s or 0.0))


def _columns(width: int, *, several: bool = False, reported: Container[str]) -> list[tuple[str, int]]:
    """Names and widths. `reported`: values that some rank reports; the column of another leaves its place to the next ones."""
    table = OF_NODES if several else COLUMNS
    absent = [one for one in table if one[0] in REPORTED and REPORTED[one[0]] not in reported]
    freed = {need: sum(one[1] + 1 for one in absent if one[2] < need) for _, _, need in table}
    shown = [(name, size) for name, size, need in table if width >= need - freed[need]]
    shown = [one for one in shown if one[0] not in {name for name, _, _ in absent}]
    left = width - sum(size + 1 for _, size in shown)
    if several and left > 0:
        for name, most in WIDER.items():
            more = min(most, left)
            shown = [(each, size + more * (each == name)) for each, size in shown]
            left -= more * any(each == name for each, _ in shown)
    return [*shown, (LINE, left - 1)] if left > LINE_LEAST else shown


# What a column is sorted by, and whether the greatest comes first; laggards and the silent come before others.
ORDERS: dict[str, tuple[str, bool]] = {
    "rank": ("", False),
    "state": ("", False),
    "step": ("step", False),
    "ms/step": ("step_time_s", True),
    "skew": ("step_time_s", True),
    "data": ("data_wait_s", True),
    "compute": ("compute_s", True),
    "mem": ("memory_used_bytes", True),
    "peak": ("memory_peak_bytes", True),
    "cpu": ("cpu_ratio", True),
    "pid": ("", False),
    "seen": ("", False),
    LINE: ("", False),
}


def _ordered(items: list[Item], by: str, last: Mapping[str, str], *, is_live: bool) -> list[Item]:
    """Ranks by a column; those whose value is not known come last, each in the order of ranks."""
    name, greatest = ORDERS[by]

    def rank_of(item: Item) -> st.RankState:
        assert item.rank is not None, "nodes are sorted by themselves"
        return item.rank

    def number(item: Item) -> tuple[bool, float]:
        sample = item.sample
        value = _seen_t(item) if by == "seen" else sample.values.get(name) if sample is not None else None
        if value is None and by == "mem" and sample is not None:
            value = sample.values.get("rss_bytes")
        if value is None and by == "ms/step" and sample is not None:
            value = sample.pace_s
        slow = slow_rank_of(item.state) if by == "skew" else None
        if slow is not None and slow.rank is not None and slow.rank == rank_of(item).rank:
            value = math.inf
        return value is None, 0.0 if value is None else -value if greatest else value

    match by:
        case "rank":
            return items
        case "state":  # those that are gone first, then by their word
            return sorted(
                items,
                key=lambda item: (
                    not rank_of(item).exited,
                    rank_state(rank_of(item), item.state, is_live=is_live)[0],
                ),
            )
        case "pid":
            return sorted(items, key=lambda item: (rank_of(item).pid is None, rank_of(item).pid or 0))
        case "last line":
            entries = {name: last.get(name, "") for name in (rank_label(rank_of(item)) for item in items)}
            return sorted(
                items,
                key=lambda item: (not (text := entries[rank_label(rank_of(item))]), text),
            )
        case _:
            return sorted(items, key=number)


def _seen_t(item: Item) -> float | None:
    """When a rank last logged a step; where its steps are not its own, when its process was last seen.

    While nothing moves the silence is everybody's: else the one rank that prints would look like the one that is late.
    """
    sample = item.sample
    if sample is None:
        return None
    attempt = item.state.attempt
    stall = attempt.stall if attempt is not None else None
    return sample.stepped_t or (stall.since if stall is not None else sample.seen_t)


def _states(snapshot: Snapshot) -> list[st.RunState]:
    """Of all nodes."""
    return [node.state for node in snapshot.nodes] or [snapshot.state]


def _reports_alone(snapshot: Snapshot, sample: Rank | None) -> bool:
    """Whether this rank's steps are all that there are."""
    if snapshot.nodes or sample is None or sample.stepped_t is None:
        return False
    return sum(rank.stepped_t is not None for rank in snapshot.ranks.values()) == 1


def _samples(snapshot: Snapshot) -> Iterator[tuple[str, Rank]]:
    """The newest readings of all ranks, by their name."""
    for samples in [node.ranks for node in snapshot.nodes] or [snapshot.ranks]:
        yield from samples.items()


def _waited(wait_s: float | None, *, starved: bool) -> Span:
    return Span(
        ("⚠ " if starved else "") + fm.seconds(wait_s), TextStyle.WARN if starved else TextStyle.PLAIN
    )


def _age(age_s: float | None, *, ended: bool, late_s: float = fm.VERY_STALE_S) -> Span:
    text = fm.age(age_s)
    if age_s is not None and not ended and age_s >= late_s:
        return Span(f"{text} ⚠" if len(text) < 4 else f"{text}⚠", TextStyle.WARN)
    is_fresh = age_s is None or age_s < fm.STALE_S
    return Span(text, TextStyle.PLAIN if is_fresh and not ended else TextStyle.DIM)


def _median(ranks: Iterable[Rank], name: str) -> float | None:
    found = [r.values.get(name) for r in ranks]
    return median([value for value in found if value is not None])
