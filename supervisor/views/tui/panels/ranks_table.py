"""The ranks table: who is where, who lags, who waits for data, who is gone; of a run on several nodes below their nodes."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace
from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.run import state as st
from supervisor.run.events import SlowRankFound
from supervisor.views import format as fm
from supervisor.views.logs.sources import rank_label
from supervisor.views.model.history import median
from supervisor.views.model.snapshot import Rank, Snapshot
from supervisor.views.model.step_pace import SILENT_GAPS, ranks_behind
from supervisor.views.tui.panels.node_rows import (
    NodeFolds,
    NodeRow,
    links_text,
    node_row,
    node_state,
    percent_text,
    ranks_of,
)
from supervisor.views.tui.panels.state_words import rank_state
from supervisor.views.tui.shell.saved_layout import memory_of
from supervisor.views.tui.widgets.lists import ListPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row
from supervisor.views.wording.kinds import reading_text

# A rank that waits for its data this long and ten times the median is marked.
DATA_WAIT_S = 0.05
# Printed step times that differ by so much between ranks that wait for each other are no measure of the same thing.
UNPROVEN_SKEW = 0.2
# A rank's last line is shown if at least this many cells are left beside the other columns.
LINE_LEAST = 24
LINE = "last line"
NETWORK = "network"
# What the frame and the pane's number take of the line with the two titles.
TITLE_EDGE_CELLS = 13
# Name and width, in the order in which they are shown.
COLUMNS = {
    "rank": 5, "state": 11, "step": 7, "ms/step": 7, "skew": 6, "data": 8, "compute": 8, "mem": 5, "peak": 5, "cpu": 6,
    "pid": 7, "seen": 5,
}  # fmt: skip
# The same of several nodes: a node has all but a pid, a rank all but a card, a network and other ranks.
OF_NODES = {
    "rank": 9, "state": 10, "ranks": 5, "step": 6, "ms/step": 7, "skew": 6, "data": 8, "mem": 5, "cpu": 6, "gpu": 5,
    NETWORK: 10, "pid": 7, "seen": 5,
}  # fmt: skip
# Those come first of which a narrow table has no room for all.
WANTED = ("rank", "state", "step", "ms/step", "mem", "seen", "skew", "data", "cpu", "pid", "compute", "peak")
WANTED_OF_NODES = (
    *(
        "rank",
        "state",
        "step",
        "seen",
        "gpu",
        "skew",
        NETWORK,
        "ranks",
        "ms/step",
        "mem",
        "data",
        "cpu",
        "pid",
    ),
)
# The names of nodes and what their interfaces carry get so many cells where there are any left.
WIDER = {"rank": 12, NETWORK: 24}
# Columns that are shown only if some rank reports their value.
REPORTED = {"data": "data_wait_s", "compute": "compute_s", "peak": "memory_peak_bytes"}
LEFT = frozenset(["state", LINE, NETWORK])
# What a column is sorted by, where that is a number of a rank, and whether the greatest comes first: laggards before others.
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


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank, and the newest readings of it. `state`: of its node; `node`: which of several that is."""

    rank: st.RankState
    state: st.RunState
    sample: Rank | None
    node: int | None = None

    @property
    def name(self) -> str:
        """What the rank is called."""
        return rank_label(self.rank)

    @property
    def is_waited_for(self) -> bool:
        """Whether its node's keeper found that the others wait for it."""
        slow = slow_rank_of(self.state)
        return slow is not None and slow.rank is not None and slow.rank == self.rank.rank

    @property
    def seen_t(self) -> float | None:
        """When it last logged a step; where its steps are not its own, when its process was last seen.

        While nothing moves the silence is everybody's: else the one rank that prints would look like the one that is late.
        """
        if self.sample is None:
            return None
        attempt = self.state.attempt
        stall = attempt.stall if attempt is not None else None
        return self.sample.stepped_t or (stall.since if stall is not None else self.sample.seen_t)


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
        self._items: list[RankRow | NodeRow] = []
        self._folds = NodeFolds()
        self._usual_step_s: float | None = None
        self._usual_wait_s: float | None = None
        # Ranks that log no more while others do: of a few that is a sign, of most a habit of the script.
        self._silent = self._terse = frozenset[str]()
        self._last: Mapping[str, str] = {}
        self.by = "rank"

    @property
    def _snapshot(self) -> Snapshot:
        assert self.view is not None, "nothing is drawn before the first moment"
        return self.view.snapshot

    @property
    def _wall(self) -> float:
        """This machine's wall time."""
        assert self.view is not None, "nothing is drawn before the first moment"
        return self.view.now + self.view.snapshot.state.clock_ahead_s

    def on_mount(self) -> None:
        """Sorted as last time."""
        kept = memory_of(self.app).kept
        self.by = kept.ranks_by if kept.ranks_by in ORDERS else "rank"

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
        """How many there are, and the worst that is known of one of them."""
        if self.view is None:
            return EMPTY, EMPTY
        snapshot = self.view.snapshot
        count = sum(len(ranks_of(state, snapshot.state)) for state in _states(snapshot))
        text = f"ranks · {count} on {len(snapshot.nodes)} nodes" if snapshot.nodes else f"ranks · {count}"
        by = self.tr(f" · by {self.by}") if self.by != "rank" else ""
        left = row(Span(self.tr(text), TextStyle.STRONG), Span(by, TextStyle.DIM))
        trouble, style = self._trouble(snapshot, self.size.width - cells(left) - TITLE_EDGE_CELLS)
        return left, row(Span(trouble, style)) if trouble else EMPTY

    def _trouble(self, snapshot: Snapshot, room: int) -> tuple[str, TextStyle]:
        attempt, states = snapshot.state.attempt, _states(snapshot)
        is_well = attempt is not None and (attempt.exit_code == 0 or attempt.ended_on_request)
        ranks = [rank for state in states for rank in ranks_of(state, snapshot.state)]
        gone = 0 if is_well else sum(rank.exited and rank.exit_code != 0 for rank in ranks)
        if gone:
            return self.tr(f"✗ {gone} gone"), TextStyle.BAD
        nodes = () if snapshot.state.is_over else snapshot.nodes
        silent = tuple(n.number for n in nodes if node_state(n, snapshot, self._wall)[1] is TextStyle.BAD)
        if silent:
            return self.tr(f"⚠ no sign of node {fm.ranges(silent)}"), TextStyle.BAD
        found = [each for state in states if (each := slow_rank_of(state)) is not None]
        slow = tuple(sorted(each.rank for each in found if each.rank is not None))
        if slow:
            text = self.tr(f"⚠ slow: {fm.ranges(slow)}")
            if len(found) == 1 and found[0].lost_s > 0:
                whole = self.tr(f"⚠ slow: {slow[0]}, others wait {wait_text(found[0].lost_s)}")
                text = whole if cell_len(whole) <= room else text
            return text, TextStyle.WARN
        if self._silent:
            names = fm.ranges(tuple(sorted(int(name) for name in self._silent if name.isdigit())))
            return self.tr(f"⚠ silent: {names}"), TextStyle.WARN
        return "", TextStyle.PLAIN

    def heading(self, width: int) -> Sequence[Row]:
        """Names of the columns."""
        several = self.view is not None and bool(self.view.snapshot.nodes)
        text = ""
        for name, size in self._columns(width):
            is_node = several and name == "rank"
            text += (
                fit(self.tr("node" if is_node else name), size, right=name not in LEFT and not is_node) + " "
            )
        return [row(Span(text, TextStyle.DIM))]

    # -- rows ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """One row a rank and a node, or one that says that there is none."""
        snapshot = self._snapshot
        ranks = dict(_samples(snapshot))
        trains = isinstance(snapshot.state.condition, st.Running) and not reading_text(snapshot.state)
        behind, is_habit = ranks_behind(ranks) if trains else (frozenset[str](), False)
        self._silent, self._terse = (frozenset[str](), behind) if is_habit else (behind, frozenset[str]())
        self._usual_step_s = _median(ranks.values(), "step_time_s")
        self._usual_wait_s = _median(ranks.values(), "data_wait_s")
        self._items = list(self._rows_of(snapshot))
        return max(len(self._items), 1)

    def needed_rows(self, snapshot: Snapshot) -> int:
        """How many rows the table has, as far as nodes are folded."""
        if not snapshot.nodes:
            return len(ranks_of(snapshot.state, snapshot.state))
        opened = (node for node in snapshot.nodes if not self._folds.is_folded(node.number, snapshot))
        return len(snapshot.nodes) + sum(len(ranks_of(node.state, snapshot.state)) for node in opened)

    def _rows_of(self, snapshot: Snapshot) -> Iterator[RankRow | NodeRow]:
        if not snapshot.nodes:
            yield from self._ranks_of(snapshot.state, snapshot.ranks)
            return
        nodes = [node_row(node, snapshot, self._wall) for node in snapshot.nodes]
        for item in sorted(nodes, key=self._order_of_node):
            yield item
            if not self._folds.is_folded(item.node.number, snapshot):
                yield from self._ranks_of(item.node.state, item.node.ranks, item.node.number)

    def _ranks_of(
        self, state: st.RunState, samples: Mapping[str, Rank], node: int | None = None
    ) -> list[RankRow]:
        ranks = ranks_of(state, self._snapshot.state)
        return sorted(
            (RankRow(rank, state, samples.get(rank_label(rank)), node) for rank in ranks), key=self._order
        )

    def _order(self, item: RankRow) -> tuple[bool, float | str]:
        """By the chosen column; ranks of which it is not known come last, each in the order of ranks."""
        (name, is_greatest_first), sample = ORDERS[self.by], item.sample
        value: float | str | None
        match self.by:
            case "rank":
                return False, 0.0
            case "state":  # those that are gone first, then by their word
                return not item.rank.exited, self._state_of(item)[0]
            case "pid":
                value = item.rank.pid
            case "last line":
                value = self._last.get(item.name) or None
            case "seen":
                value = item.seen_t
            case "skew" if item.is_waited_for:
                value = math.inf
            case "mem" if sample is not None:
                value = sample.values.get(name) or sample.values.get("rss_bytes")
            case "ms/step" if sample is not None:
                value = sample.values.get(name) or sample.pace_s
            case _:
                value = sample.values.get(name) if sample is not None else None
        if value is None or isinstance(value, str):
            return value is None, value or ""
        return False, -value if is_greatest_first else value

    def _order_of_node(self, item: NodeRow) -> tuple[bool, float | str]:
        """The same of nodes: by what the column shows of them."""
        name, is_greatest_first = ORDERS[self.by]
        if self.by in {"rank", "pid", LINE}:
            return False, 0.0
        if self.by == "state":
            return item.style is not TextStyle.BAD, item.word
        value = item.slowest_s if self.by == "skew" else item.values.get(name)
        value = item.node.beat_t if self.by == "seen" else value
        return value is None, 0.0 if value is None else -value if is_greatest_first else value

    def _state_of(self, item: RankRow) -> tuple[str, TextStyle]:
        return rank_state(item.rank, item.state, is_live=self._snapshot.keeper_alive)

    # -- keys ----------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's own
        """There is nothing to fold on one node."""
        return not action.startswith("fold") or bool(self.view is not None and self.view.snapshot.nodes)

    def _node_here(self) -> int | None:
        """The node that the cursor is on, or on a rank of it."""
        if self.cursor >= len(self._items):
            return None
        item = self._items[self.cursor]
        return item.node.number if isinstance(item, NodeRow) else item.node

    def action_fold(self, way: int = 0) -> None:
        """Fold (-1) or unfold (1) the node that the cursor is on; 0: the other of the two."""
        number = self._node_here()
        if number is not None:
            is_folded = way < 0 or (way == 0 and not self._folds.is_folded(number, self._snapshot))
            self._fold([number], is_folded=is_folded)

    def action_fold_all(self, folded: bool) -> None:
        """Fold or unfold all nodes."""
        self._fold([node.number for node in self._snapshot.nodes], is_folded=folded)

    def _fold(self, numbers: Iterable[int], *, is_folded: bool) -> None:
        """Fold nodes; the cursor stays on its rank, or on its node. The panes may need another height."""
        here = self._items[self.cursor] if self.cursor < len(self._items) else None
        node = self._node_here()
        self._folds.fold(numbers, is_folded=is_folded)
        self.count()
        places = [
            at
            for at, item in enumerate(self._items)
            if (isinstance(item, NodeRow) and item.node.number == node)
            or (isinstance(item, RankRow) and isinstance(here, RankRow) and item.name == here.name)
        ]
        self.cursor = places[-1] if places else 0
        self.post_message(self.Folded())
        self.repaint()

    def action_choose(self) -> None:
        """Show the log of the rank under the cursor, or of all ranks of the node."""
        if self._items:
            item = self._items[self.cursor]
            chosen = (
                self.Chosen("", item.node.number) if isinstance(item, NodeRow) else self.Chosen(item.name)
            )
            self.post_message(chosen)

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

    def on_click(self, event: events.Click) -> None:
        """A click on a column's name sorts by it; on a rank it puts the cursor, on a node it folds or unfolds it."""
        edge = int(self.framed)
        if event.y != edge:
            super().on_click(event)
            at = event.y - edge - self._heading_rows + self._top
            if 0 <= at < len(self._items) and isinstance(self._items[at], NodeRow):
                self.action_fold()
            return
        event.stop()
        end = edge
        for name, size in self._columns(self.size.width - 2):
            end += size + 1
            if event.x < end:
                if name in ORDERS:
                    self.sort_by(name)
                return

    # -- cells ---------------------------------------------------------------------------------------------

    def _columns(self, width: int) -> list[tuple[str, int]]:
        snapshot = self.view.snapshot if self.view is not None else None
        samples = _samples(snapshot) if snapshot is not None else ()
        reported = {name for _, rank in samples for name in rank.values}
        return columns_of(width, several=snapshot is not None and bool(snapshot.nodes), reported=reported)

    def item(self, index: int, width: int) -> Row:
        """One rank or node."""
        if not self._items:
            attempt = self._snapshot.state.attempt
            has_stepped = attempt is not None and attempt.last_step is not None
            text = "no process says its rank" if has_stepped else "no rank has started yet"
            return row(Span(self.tr(text), TextStyle.DIM))
        item, columns = self._items[index], self._columns(width)
        fields = self._of_rank(item) if isinstance(item, RankRow) else self._of_node(item, dict(columns))
        spans: list[Span] = []
        for name, size in columns:
            span = fields.get(name, Span(""))
            is_left = name in LEFT or (name == "rank" and bool(self._snapshot.nodes))
            spans += [Span(fit(span.text, size, right=not is_left), span.style), Span(" ")]
        return tuple(spans)

    def _of_node(self, item: NodeRow, sizes: Mapping[str, int]) -> dict[str, Span]:
        """A node's row."""
        node, values, over = item.node, item.values, self._snapshot.state.is_over
        slow = slow_rank_of(node.state)
        is_slow = slow is not None and slow.rank is not None
        is_short = item.living < item.ranks and not over
        sign = "▸" if self._folds.is_folded(node.number, self._snapshot) else "▾"
        beat_s = max(0.0, self._wall - node.beat_t) if node.beat_t is not None else None
        return {
            "rank": Span(f"{sign} n{node.number} {node.state.host}", TextStyle.STRONG),
            "state": Span(self.tr(item.word), item.style),
            "ranks": Span(f"{item.living}/{item.ranks}", TextStyle.WARN if is_short else TextStyle.PLAIN),
            "step": Span(fm.whole(values["step"])),
            "ms/step": Span(_milli(values["step_time_s"])),
            "skew": self._skew(item.slowest_s, node.state, is_slow=is_slow),
            "data": self._waited(values),
            "mem": Span(fm.memory(values["memory_used_bytes"])),
            "cpu": Span(fm.percent(values["cpu_ratio"])),
            "gpu": Span(fm.percent(item.gpu_ratio) if item.gpu_ratio is not None else fm.DASH),
            NETWORK: Span(
                links_text(item.links, sizes.get(NETWORK, 10)), TextStyle.DIM if over else TextStyle.PLAIN
            ),
            "seen": _age(beat_s, ended=over),
        }

    def _of_rank(self, item: RankRow) -> dict[str, Span]:
        """A rank's row."""
        assert self.view is not None, "nothing is drawn before the first moment"
        snapshot, rank, sample = self.view.snapshot, item.rank, item.sample
        values = sample.values if sample else {}
        alone = len(self._items) == 1 and "step" not in values
        if (
            alone
        ):  # what is known of the job is shown of its one rank; a process that is only measured has no step
            values = {"step": snapshot.step, "step_time_s": snapshot.latest("step_time_s"), **values}
        step_s, pace_s = values.get("step_time_s"), sample.pace_s if sample is not None else None
        if alone or _reports_alone(snapshot, sample):  # the same number as in the header
            took, is_derived = snapshot.step_time_s
            step_s, pace_s = (None, took) if is_derived else (took, None)
        seen_s = self.view.now - item.seen_t if item.seen_t else None
        word, style = self._state_of(item)
        return {
            "rank": Span(f"{'    ' if item.node is not None else ''}{item.name}", TextStyle.STRONG),
            "state": Span(self.tr(word), style),
            "step": Span(fm.whole(values.get("step"))),
            # By when lines came all ranks of a job are as slow as the slowest: that is no skew.
            "ms/step": Span(fm.about(_milli)(pace_s) if pace_s and not step_s else _milli(step_s)),
            "skew": self._skew(step_s, item.state, is_slow=item.is_waited_for),
            "data": self._waited(values),
            "compute": Span(fm.seconds(values.get("compute_s"))),
            "mem": Span(fm.memory(values.get("memory_used_bytes") or values.get("rss_bytes"))),
            "peak": Span(fm.memory(values.get("memory_peak_bytes"))),
            "cpu": Span(fm.percent(values.get("cpu_ratio"))),
            "pid": Span(str(rank.pid or fm.DASH), TextStyle.DIM),
            "seen": _age(seen_s, ended=rank.exited, late_s=self._late_after_s(item)),
            LINE: Span(self._last.get(item.name, "").strip(), TextStyle.DIM),
        }

    def _skew(self, step_s: float | None, state: st.RunState, *, is_slow: bool) -> Span:
        """By how much a rank is slower than the others; of the one that they wait for, how long they do in every step.

        A step time that it prints does not show that by itself: the rank that waits may print the longer one.
        """
        slow, usual_s = slow_rank_of(state), self._usual_step_s
        skew = step_s / usual_s - 1 if step_s and usual_s else None
        if is_slow:
            # Not in percent: beside its own step time, which is the shortest, that would read as its opposite.
            has_time = slow is not None and slow.lost_s > 0
            text = f"+{wait_text(slow.lost_s)}" if slow is not None and has_time else percent_text(skew)
            return Span(text, TextStyle.WARN)
        if skew is not None and abs(skew) >= UNPROVEN_SKEW:
            return Span("?" if slow is None or slow.unclear else fm.DASH)
        return Span(percent_text(skew))

    def _waited(self, values: Mapping[str, float | None]) -> Span:
        """How long a rank waits for its data; marked where that is long, also beside what is usual here."""
        wait_s = values.get("data_wait_s")
        if wait_s is None or wait_s <= max(DATA_WAIT_S, 10 * (self._usual_wait_s or 0.0)):
            return Span(fm.seconds(wait_s))
        return Span(f"⚠ {fm.seconds(wait_s)}", TextStyle.WARN)

    def _late_after_s(self, item: RankRow) -> float:
        """The age of a rank's last step from which on it is marked: one that logs every ten minutes is not late after one."""
        usual = item.sample.cadence if item.sample is not None else None
        if item.name in self._silent or item.name in self._terse:
            return 0.0 if item.name in self._silent else math.inf
        return max(fm.VERY_STALE_S, SILENT_GAPS * usual[0] if usual is not None else 0.0)


def columns_of(width: int, *, several: bool = False, reported: Container[str]) -> list[tuple[str, int]]:
    """Names and widths of the columns that fit. `reported`: values that some rank reports; the columns of others are left out."""
    sizes, wanted = (OF_NODES, WANTED_OF_NODES) if several else (COLUMNS, WANTED)
    left, chosen = width, set[str]()
    for name in wanted:
        if name in REPORTED and REPORTED[name] not in reported:
            continue
        # The names of nodes in full come before what is least wanted.
        reserved = WIDER["rank"] if several and name in {"data", "cpu", "pid"} else 0
        if left - reserved <= sizes[name]:
            break
        chosen.add(name)
        left -= sizes[name] + 1
    shown = {name: size for name, size in sizes.items() if name in chosen}
    for name, most in WIDER.items() if several else ():
        if name in shown and left > 0:
            more = min(most, left)
            shown[name] += more
            left -= more
    return [*shown.items(), *([(LINE, left - 1)] if left > LINE_LEAST else [])]


def slow_rank_of(state: st.RunState) -> SlowRankFound | None:
    """Which rank the others wait for, by the newest attempt's keeper; None while nothing was found."""
    found = state.attempt.slow_rank if state.attempt is not None else None
    return found if found is not None and (found.rank is not None or found.unclear) else None


def wait_text(wait_s: float) -> str:
    """A time within a step, in at most five cells: ``371ms``, ``1.25s``."""
    return f"{wait_s * 1000:.0f}ms" if wait_s < 0.9995 else f"{wait_s:.3g}s"


def _milli(value_s: float | None) -> str:
    return fm.whole(value_s * 1000) if value_s else fm.DASH


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


def _age(age_s: float | None, *, ended: bool, late_s: float = fm.VERY_STALE_S) -> Span:
    text = fm.age(age_s)
    if age_s is not None and not ended and age_s >= late_s:
        return Span(f"{text} ⚠" if len(text) < 4 else f"{text}⚠", TextStyle.WARN)
    is_fresh = age_s is None or age_s < fm.STALE_S
    return Span(text, TextStyle.PLAIN if is_fresh and not ended else TextStyle.DIM)


def _median(ranks: Iterable[Rank], name: str) -> float | None:
    return median([value for rank in ranks if (value := rank.values.get(name)) is not None])
