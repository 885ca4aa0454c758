"""The ranks table: steps, stragglers, data waits and dead ranks. With several nodes, ranks are grouped under their node."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.run import state as st
from supervisor.run.events import NodeSight, SlowRankFound
from supervisor.run.heartbeat import SILENT_S
from supervisor.run.node_files import LEADER
from supervisor.run.series import NET_RECEIVED, NET_SENT
from supervisor.views import format as fm
from supervisor.views.logs.sources import rank_label
from supervisor.views.model.snapshot import Node, Rank, Snapshot
from supervisor.views.model.thinned_series import median
from supervisor.views.tui.panels.state_words import OUTCOMES, rank_state
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row
from supervisor.views.tui.widgets.panel import ListPanel

# Mark a rank that waits this long for its data and ten times longer than the median.
DATA_WAIT_S = 0.05
# If printed step times differ this much between ranks that wait for each other, they measure different things.
UNPROVEN_SKEW = 0.2
# Show a rank's last line if the other columns leave at least this many cells.
LINE_LEAST = 24
LINE = "last line"
# With more rows of nodes and ranks than this, fold each node into one row until the user unfolds it.
OPEN_ROWS = 20
# Names and widths, in display order. The name of a node needs NODE_CELLS.
COLUMNS = {
    "rank": 5, "state": 11, "ranks": 5, "step": 7, "ms/step": 7, "skew": 6, "data": 8, "compute": 8, "mem": 5, "peak": 5,
    "cpu": 6, "gpu": 5, "network": 11, "pid": 7, "seen": 5,
}  # fmt: skip
NODE_CELLS = 14
# The columns in the order in which a narrow table keeps them, and the columns for only one kind of table.
WANTED = (
    *("rank", "state", "step", "ms/step", "mem", "seen", "skew", "gpu", "network", "ranks"),
    *("data", "cpu", "pid", "compute", "peak"),
)
OF_NODES = frozenset(["ranks", "gpu", "network"])
OF_ONE_NODE = frozenset(["compute", "peak"])
# Columns shown only if some rank reports a value.
REPORTED = {"data": "data_wait_s", "compute": "compute_s", "peak": "memory_peak_bytes"}
LEFT = frozenset(["state", LINE, "network"])
# How to write a column's number. The other columns need more than their number.
FORMATS: Mapping[str, Callable[[float | None], str]] = {
    "step": fm.whole,
    "ms/step": lambda value_s: fm.whole(value_s * 1000) if value_s else fm.DASH,
    "compute": fm.seconds,
    "mem": fm.memory,
    "peak": fm.memory,
    "cpu": fm.percent,
    "gpu": lambda ratio: fm.percent(ratio) if ratio is not None else fm.DASH,
}


class Line(NamedTuple):
    """A row for a rank, or for a node if there are several. `who` is the rank ("" for a node); `node` is the node number."""

    cells: Mapping[str, Span]
    who: str = ""
    node: int | None = None


class RanksPanel(ListPanel, can_focus=True):
    """A table of the latest attempt's ranks, one per row. Node rows can be folded. `take_lines` sets each rank's last log line."""

    number = 3
    uses_clock = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "log of this rank"),
        Binding("space", "fold", "fold or unfold this node"),
    ]

    class Chosen(Message):
        """Posted to request the log of a rank or a node."""

        def __init__(self, who: str, node: int | None = None) -> None:
            super().__init__()
            self.who = who
            self.node = node

    class Folded(Message):
        """Posted when the number of rows changes."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._folds: dict[int, bool] = {}  # nodes that the user folded or unfolded
        self._usual_step_s: float | None = None
        self._usual_wait_s: float | None = None
        self._last: Mapping[str, str] = {}

    @property
    def _snapshot(self) -> Snapshot:
        assert self.view is not None, "nothing is drawn before the first moment"
        return self.view.snapshot

    @property
    def _now(self) -> float:
        assert self.view is not None, "nothing is drawn before the first moment"
        return self.view.now

    @property
    def _wall(self) -> float:
        """This machine's wall-clock time."""
        return self._now + self._snapshot.state.clock_ahead_s

    def take_lines(self, last: Mapping[str, str]) -> None:
        """Show the last line of each rank's log."""
        self._last = last
        self.repaint()

    def titles(self) -> tuple[Row, Row]:
        """Return two titles: the number of ranks and nodes, and the worst problem among them."""
        if self.view is None:
            return EMPTY, EMPTY
        snapshot = self.view.snapshot
        count = sum(len(ranks_of(state, snapshot.state)) for state in _states(snapshot))
        text = f"ranks · {count} on {len(snapshot.nodes)} nodes" if snapshot.nodes else f"ranks · {count}"
        trouble, style = self._trouble(snapshot)
        left = row(Span(self.tr(text), TextStyle.STRONG))
        return left, row(Span(self.tr(trouble), style)) if trouble else EMPTY

    def _trouble(self, snapshot: Snapshot) -> tuple[str, TextStyle]:
        attempt, states = snapshot.state.attempt, _states(snapshot)
        is_well = attempt is not None and (attempt.exit_code == 0 or attempt.ended_on_request)
        ranks = [rank for state in states for rank in ranks_of(state, snapshot.state)]
        gone = 0 if is_well else sum(rank.exited and rank.exit_code != 0 for rank in ranks)
        if gone:
            return f"✗ {gone} gone", TextStyle.BAD
        nodes = () if snapshot.state.is_over else snapshot.nodes
        silent = tuple(n.number for n in nodes if node_state(n, snapshot, self._wall).style is TextStyle.BAD)
        if silent:
            return f"⚠ no sign of node {fm.ranges(silent)}", TextStyle.BAD
        found = [each.rank for state in states if (each := slow_rank_of(state)) is not None]
        slow = tuple(sorted(rank for rank in found if rank is not None))
        if slow:
            return f"⚠ slow: {fm.ranges(slow)}", TextStyle.WARN
        return "", TextStyle.PLAIN

    def heading(self, width: int) -> Sequence[Row]:
        """Return the column names."""
        several = self.view is not None and bool(self.view.snapshot.nodes)
        text = ""
        for name, size in self._columns(width):
            is_node = several and name == "rank"
            shown = self.tr("node" if is_node else name)
            text += fit(shown, size, right=name not in LEFT and not is_node) + " "
        return [row(Span(text, TextStyle.DIM))]

    # -- rows ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return the number of rows: one per rank and node, or 1 if the table is empty."""
        snapshot = self._snapshot
        ranks = _samples(snapshot)
        self._usual_step_s = median(_known(ranks.values(), "step_time_s"))
        self._usual_wait_s = median(_known(ranks.values(), "data_wait_s"))
        if not snapshot.nodes:
            self._lines = self._ranks_of(snapshot.state, snapshot.ranks)
            return max(len(self._lines), 1)
        self._lines = []
        for node in snapshot.nodes:
            self._lines.append(self._line_of_node(node))
            if not self._is_folded(node.number, snapshot):
                self._lines += self._ranks_of(node.state, node.ranks, node.number)
        return len(self._lines)

    def needed_rows(self, snapshot: Snapshot) -> int:
        """Return the number of rows in the table, not counting ranks of folded nodes."""
        if not snapshot.nodes:
            return len(ranks_of(snapshot.state, snapshot.state))
        opened = (node for node in snapshot.nodes if not self._is_folded(node.number, snapshot))
        return len(snapshot.nodes) + sum(len(ranks_of(node.state, snapshot.state)) for node in opened)

    def _is_folded(self, number: int, snapshot: Snapshot) -> bool:
        whole = sum(1 + len(ranks_of(node.state, snapshot.state)) for node in snapshot.nodes)
        return self._folds.get(number, whole > OPEN_ROWS)

    def _ranks_of(
        self, state: st.RunState, samples: Mapping[str, Rank], node: int | None = None
    ) -> list[Line]:
        ranks = ranks_of(state, self._snapshot.state)
        is_alone = len(ranks) == 1 and node is None
        return [
            self._line_of_rank(rank, state, samples.get(rank_label(rank)), node, is_alone=is_alone)
            for rank in ranks
        ]

    def _line_of_node(self, node: Node) -> Line:
        """Summarize a node: lowest step, median and longest step time, and highest data wait and memory."""
        snapshot, over, samples = self._snapshot, self._snapshot.state.is_over, node.ranks.values()
        ranks, slow = ranks_of(node.state, snapshot.state), slow_rank_of(node.state)
        living = sum(not rank.exited for rank in ranks)
        state = node_state(node, snapshot, self._wall)
        sign = "▸" if self._is_folded(node.number, snapshot) else "▾"
        took = _known(samples, "step_time_s")
        memory = _known(samples, "memory_used_bytes") or _known(samples, "rss_bytes")
        used = [each for gpu in node.gpus if (each := gpu.values.get("util_ratio")) is not None]
        values = {
            "step": min(_known(samples, "step"), default=None),
            "ms/step": median(took),
            "mem": max(memory, default=None),
            "cpu": node.machine.values.get("cpu_ratio") if node.machine is not None else None,
            "gpu": fmean(used) if used else None,
        }
        few = TextStyle.WARN if living < len(ranks) and not over else TextStyle.PLAIN
        beat_s = max(0.0, self._wall - node.beat_t) if node.beat_t is not None else None
        fields = {
            "rank": Span(f"{sign} n{node.number} {node.state.host}", TextStyle.STRONG),
            "state": Span(self.tr(state.text), state.style),
            "ranks": Span(f"{living}/{len(ranks)}", few),
            **{name: Span(say(values.get(name))) for name, say in FORMATS.items()},
            "skew": self._skew(
                max(took, default=None), slow, is_slow=slow is not None and slow.rank is not None
            ),
            "data": self._waited(max(_known(samples, "data_wait_s"), default=None)),
            "network": Span(network_text(node), TextStyle.DIM if over else TextStyle.PLAIN),
            "seen": _age(beat_s, ended=over),
        }
        return Line(fields, node=node.number)

    def _line_of_rank(
        self, rank: st.RankState, state: st.RunState, sample: Rank | None, node: int | None, *, is_alone: bool
    ) -> Line:
        snapshot, name = self._snapshot, rank_label(rank)
        values = sample.values if sample else {}
        # If the job has only one rank, show the job's values. A process that is only measured has no step.
        if is_alone := is_alone and "step" not in values:
            values = {"step": snapshot.step, "step_time_s": snapshot.latest("step_time_s"), **values}
        step_s, pace_s = values.get("step_time_s"), sample.pace_s if sample is not None else None
        if is_alone or _reports_alone(snapshot, sample):  # the header shows the same number
            took, is_derived = snapshot.step_time_s
            step_s, pace_s = (None, took) if is_derived else (took, None)
        slow, seen_t = slow_rank_of(state), _seen_t(state, sample)
        is_slow = slow is not None and slow.rank is not None and slow.rank == rank.rank
        numbers = {
            "step": values.get("step"),
            "ms/step": step_s or pace_s,
            "compute": values.get("compute_s"),
            "mem": values.get("memory_used_bytes") or values.get("rss_bytes"),
            "peak": values.get("memory_peak_bytes"),
            "cpu": values.get("cpu_ratio"),
        }
        word, style = rank_state(rank, state, is_live=snapshot.keeper_alive)
        last, age_s = self._last.get(name, "").strip(), self._now - seen_t if seen_t else None
        is_stalled = state.attempt is not None and state.attempt.stall is not None
        fields = {
            "rank": Span(f"{'    ' if node is not None else ''}{name}", TextStyle.STRONG),
            "state": Span(self.tr(word), style),
            **{name: Span(say(numbers.get(name))) for name, say in FORMATS.items()},
            "skew": self._skew(step_s, slow, is_slow=is_slow),
            "data": self._waited(values.get("data_wait_s")),
            "pid": Span(str(rank.pid or fm.DASH), TextStyle.DIM),
            "seen": _age(age_s, ended=rank.exited, is_stalled=is_stalled),
            LINE: Span(last, TextStyle.DIM),
        }
        if pace_s and not step_s:  # by line times all ranks are as slow as the straggler, so there is no skew
            fields["ms/step"] = Span(fm.about(FORMATS["ms/step"])(pace_s))
        return Line(fields, name, node)

    def _skew(self, step_s: float | None, slow: SlowRankFound | None, *, is_slow: bool) -> Span:
        """Return how much slower a rank is than the others, or how long they wait for it in every step.

        Printed step times alone do not reveal a straggler, because the waiting rank may print the longer time.
        """
        skew = step_s / self._usual_step_s - 1 if step_s and self._usual_step_s else None
        percent = f"{round(100 * skew) + 0:+d} %" if skew is not None else fm.DASH
        if is_slow and slow is not None and slow.lost_s > 0:
            # Do not use percent. The straggler's own step time is the shortest, so percent would mislead.
            wait_s = slow.lost_s
            text = f"+{wait_s * 1000:.0f}ms" if wait_s < 0.9995 else f"+{wait_s:.3g}s"
            return Span(text, TextStyle.WARN)
        if not is_slow and skew is not None and abs(skew) >= UNPROVEN_SKEW:
            return Span("?" if slow is None or slow.unclear else fm.DASH)
        return Span(percent, TextStyle.WARN if is_slow else TextStyle.PLAIN)

    def _waited(self, wait_s: float | None) -> Span:
        """Return how long a rank waits for data, with a warning if the wait is much longer than is usual for this run."""
        if wait_s is None or wait_s <= max(DATA_WAIT_S, 10 * (self._usual_wait_s or 0.0)):
            return Span(fm.seconds(wait_s))
        return Span(f"⚠ {fm.seconds(wait_s)}", TextStyle.WARN)

    def _columns(self, width: int) -> list[tuple[str, int]]:
        snapshot = self.view.snapshot if self.view is not None else None
        samples = _samples(snapshot).values() if snapshot is not None else ()
        reported = {name for rank in samples for name in rank.values}
        return columns_of(width, several=snapshot is not None and bool(snapshot.nodes), reported=reported)

    def item(self, index: int, width: int) -> Row:
        """Return the row for a rank or node."""
        if not self._lines:
            attempt = self._snapshot.state.attempt
            has_stepped = attempt is not None and attempt.last_step is not None
            text = "no process says its rank" if has_stepped else "no rank has started yet"
            return row(Span(self.tr(text), TextStyle.DIM))
        spans: list[Span] = []
        for name, size in self._columns(width):
            span = self._lines[index].cells.get(name, Span(""))
            is_left = name in LEFT or (name == "rank" and bool(self._snapshot.nodes))
            spans += [Span(fit(span.text, size, right=not is_left), span.style), Span(" ")]
        return tuple(spans)

    # -- keys ----------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's own
        """Check whether a key is available. Folding requires more than one node."""
        return action != "fold" or bool(self.view is not None and self.view.snapshot.nodes)

    def action_fold(self) -> None:
        """Fold or unfold the node under the cursor, or the node that the selected rank belongs to. The pane's height may change."""
        here = self._lines[self.cursor] if self.cursor < len(self._lines) else None
        if here is None or here.node is None:
            return
        self._folds[here.node] = not self._is_folded(here.node, self._snapshot)
        self.count()
        self.cursor = next(
            at for at, line in enumerate(self._lines) if (line.who, line.node) == ("", here.node)
        )
        self.post_message(self.Folded())
        self.repaint()

    def action_choose(self) -> None:
        """Show the log of the rank under the cursor, or the logs of all the node's ranks if the cursor is on a node."""
        if self.cursor < len(self._lines):
            here = self._lines[self.cursor]
            self.post_message(self.Chosen(here.who, None if here.who else here.node))


def columns_of(width: int, *, several: bool = False, reported: Container[str]) -> list[tuple[str, int]]:
    """Return the names and widths of the columns that fit, leaving out those whose values no rank has `reported`."""
    sizes = {**COLUMNS, "rank": NODE_CELLS} if several else COLUMNS
    left, chosen = width, set[str]()
    for name in WANTED:
        is_absent = name in REPORTED and REPORTED[name] not in reported
        if is_absent or name in (OF_ONE_NODE if several else OF_NODES):
            continue
        if left <= sizes[name]:
            break
        chosen.add(name)
        left -= sizes[name] + 1
    shown = [(name, size) for name, size in sizes.items() if name in chosen]
    return [*shown, *([(LINE, left - 1)] if left > LINE_LEAST else [])]


def ranks_of(state: st.RunState, leader: st.RunState) -> list[st.RankState]:
    """Return a node's ranks in the run's latest attempt, or no ranks if the node has not started that attempt."""
    attempt, newest = state.attempt, leader.attempt
    if attempt is None or newest is None or attempt.number != newest.number:
        return []
    return [rank for _, rank in sorted(attempt.ranks.items())]


def slow_rank_of(state: st.RunState) -> SlowRankFound | None:
    """Return the straggler found by the latest attempt's keeper, or None if there is none."""
    found = state.attempt.slow_rank if state.attempt is not None else None
    return found if found is not None and (found.rank is not None or found.unclear) else None


def node_state(node: Node, snapshot: Snapshot, now: float) -> Span:
    """Return the glyph and word for what a node is doing. `now` is this machine's wall-clock time."""
    leader, state, attempt = snapshot.state, node.state, node.state.attempt
    has_failed = attempt is not None and attempt.exit_code not in {None, 0}
    over = leader.condition if leader.is_over else state.condition
    if isinstance(over, st.Finished):
        if attempt is not None and has_failed and not attempt.ended_on_request:
            return Span(f"✗ exit {attempt.exit_code}", TextStyle.BAD)
        return OUTCOMES[over.outcome]
    sight = leader.nodes[node.number].sight if node.number in leader.nodes else None
    if sight is NodeSight.LEFT:
        return Span("✗ gone", TextStyle.BAD)
    if sight is NodeSight.SILENT or (node.beat_t is not None and now - node.beat_t > SILENT_S):
        return Span("⚠ no sign", TextStyle.BAD)
    if not ranks_of(state, leader) and node.number != LEADER:
        return Span("starting" if leader.attempt is not None else "ready", TextStyle.DIM)
    match state.condition:
        case st.Running():
            return Span(str(state.condition.phase), TextStyle.LIVE)
        case st.Launching():
            return Span("starting")
        case st.Stopping():
            return Span("stopping", TextStyle.WARN)
        case st.Preflight():
            return Span("ready", TextStyle.DIM)
        case st.HeldOpen() | st.Backoff():
            return Span("waits", TextStyle.DIM)
        case _:
            return Span("✗ ended", TextStyle.BAD) if has_failed else Span("ended", TextStyle.DIM)


def network_text(node: Node) -> str:
    """Return the receive and send rates of a node's busiest network interface, or "" if not measured."""
    values = node.machine.values if node.machine is not None else {}
    rates = [
        (received, values.get(name.replace(NET_RECEIVED, NET_SENT)) or 0)
        for name, received in values.items()
        if name.startswith(NET_RECEIVED) and received is not None
    ]
    if not rates:
        return ""
    received, sent = max(rates, key=sum)
    return f"↓{short_rate(received)} ↑{short_rate(sent)}"


def short_rate(bytes_per_s: float) -> str:
    """Format bytes per second in at most four cells: ``0``, ``934K``, ``112M``, or ``1.2G``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if bytes_per_s >= 0.9995 * size:
            number = bytes_per_s / size
            return f"{number:.1f}{unit}" if number < 9.95 else f"{number:.0f}{unit}"
    return f"{bytes_per_s:.0f}"


def _states(snapshot: Snapshot) -> list[st.RunState]:
    """Return every node's state."""
    return [node.state for node in snapshot.nodes] or [snapshot.state]


def _samples(snapshot: Snapshot) -> dict[str, Rank]:
    """Return the latest readings for all ranks, keyed by name."""
    every = [node.ranks for node in snapshot.nodes] or [snapshot.ranks]
    return {name: rank for samples in every for name, rank in samples.items()}


def _known(samples: Iterable[Rank], name: str) -> list[float]:
    return [value for each in samples if (value := each.values.get(name)) is not None]


def _seen_t(state: st.RunState, sample: Rank | None) -> float | None:
    """Return when a rank last logged a step, or when its process was last seen if it logs no steps of its own.

    During a stall, all such ranks count as silent. Otherwise, the only rank that prints would look late.
    """
    if sample is None:
        return None
    stall = state.attempt.stall if state.attempt is not None else None
    return sample.stepped_t or (stall.since if stall is not None else sample.seen_t)


def _reports_alone(snapshot: Snapshot, sample: Rank | None) -> bool:
    """Check whether this is the only rank that reports steps."""
    if snapshot.nodes or sample is None or sample.stepped_t is None:
        return False
    return sum(rank.stepped_t is not None for rank in snapshot.ranks.values()) == 1


def _age(age_s: float | None, *, ended: bool, is_stalled: bool = True) -> Span:
    """Format an age. A long age is marked only during a stall, because some ranks log only every ten minutes."""
    text = fm.age(age_s)
    if age_s is not None and not ended and is_stalled and age_s >= fm.VERY_STALE_S:
        return Span(f"{text} ⚠" if len(text) < 4 else f"{text}⚠", TextStyle.WARN)
    is_fresh = age_s is None or age_s < fm.STALE_S
    return Span(text, TextStyle.PLAIN if is_fresh and not ended else TextStyle.DIM)
