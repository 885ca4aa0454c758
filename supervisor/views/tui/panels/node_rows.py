"""A node of several in one row of the ranks table: its state, and of its ranks what matters most (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.run import state as st
from supervisor.run.events import NodeSight
from supervisor.run.nodes import LEADER, SILENT_S
from supervisor.run.series import NET_RECEIVED, NET_SENT
from supervisor.views import format as fm
from supervisor.views.model.history import median
from supervisor.views.model.snapshot import Node, Rank, Snapshot
from supervisor.views.tui.panels.state_words import outcome_span
from supervisor.views.tui.widgets.paint import TextStyle

# Up to so many rows of nodes and ranks all nodes are open; above, each is one row until a person opens it.
OPEN_ROWS = 20


class Link(NamedTuple):
    """One interface or RDMA port: bytes a second."""

    name: str
    received: float
    sent: float


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: word and color of its state, and of its ranks how many live, the least step, the greatest wait and memory, the median time of a step."""

    node: Node
    word: str
    style: TextStyle
    living: int
    ranks: int
    values: Mapping[str, float | None]
    slowest_s: float | None
    gpu_ratio: float | None
    links: tuple[Link, ...]


class NodeFolds:
    """Which nodes are folded: those that a person folded, and of many rows all that nobody opened."""

    def __init__(self) -> None:
        self._chosen: dict[int, bool] = {}

    def is_folded(self, number: int, snapshot: Snapshot) -> bool:
        """Whether the ranks of a node are hidden."""
        if number in self._chosen:
            return self._chosen[number]
        rows = sum(1 + len(ranks_of(node.state, snapshot.state)) for node in snapshot.nodes)
        return rows > OPEN_ROWS

    def fold(self, numbers: Iterable[int], *, is_folded: bool) -> None:
        """Hide the ranks of nodes, or show them."""
        self._chosen |= dict.fromkeys(numbers, is_folded)


def ranks_of(state: st.RunState, leader: st.RunState) -> list[st.RankState]:
    """A node's ranks in the run's newest attempt; none while it has not begun that one."""
    attempt, newest = state.attempt, leader.attempt
    if attempt is None or newest is None or attempt.number != newest.number:
        return []
    return [rank for _, rank in sorted(attempt.ranks.items())]


def node_row(node: Node, snapshot: Snapshot, now: float) -> NodeRow:
    """A node in one row. `now`: this machine's wall time."""
    ranks, samples = ranks_of(node.state, snapshot.state), node.ranks.values()
    took = _known(samples, "step_time_s")
    memory = _known(samples, "memory_used_bytes") or _known(samples, "rss_bytes")
    values: dict[str, float | None] = {
        "step": min(_known(samples, "step"), default=None),
        "step_time_s": median(took),
        "data_wait_s": max(_known(samples, "data_wait_s"), default=None),
        "memory_used_bytes": max(memory, default=None),
        "cpu_ratio": node.machine.values.get("cpu_ratio") if node.machine is not None else None,
    }
    used = [each for gpu in node.gpus if (each := gpu.values.get("util_ratio")) is not None]
    word, style = node_state(node, snapshot, now)
    return NodeRow(
        node,
        word,
        style,
        living=sum(not rank.exited for rank in ranks),
        ranks=len(ranks),
        values=values,
        slowest_s=max(took, default=None),
        gpu_ratio=sum(used) / len(used) if used else None,
        links=links_of(node),
    )


def links_of(node: Node) -> tuple[Link, ...]:
    """What its interfaces carry, the busiest first; those that carry nothing are left out, unless all are idle."""
    values = node.machine.values if node.machine is not None else {}
    found = [
        Link(name.removeprefix(NET_RECEIVED), received, values.get(name.replace(NET_RECEIVED, NET_SENT)) or 0)
        for name, received in values.items()
        if name.startswith(NET_RECEIVED) and received is not None
    ]
    found.sort(key=lambda link: -(link.received + link.sent))
    busy = tuple(link for link in found if link.received + link.sent >= 1)
    return busy or tuple(found[:1])


def links_text(links: Iterable[Link], width: int) -> str:
    """As many interfaces as fit: ``eth0 ↓112M ↑98M``; the rates of the busiest alone where its name does not."""
    text = ""
    for link in links:
        rates = f"↓{short_rate(link.received)} ↑{short_rate(link.sent)}"
        more = f"{text}  {link.name} {rates}" if text else f"{link.name} {rates}"
        if len(more) > width:
            return text or rates
        text = more
    return text


def short_rate(bytes_per_s: float) -> str:
    """Bytes a second in at most four cells: ``0``, ``934K``, ``112M``, ``1.2G``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if bytes_per_s >= 0.9995 * size:
            number = bytes_per_s / size
            return f"{number:.1f}{unit}" if number < 9.95 else f"{number:.0f}{unit}"
    return f"{bytes_per_s:.0f}"


def percent_text(ratio: float | None) -> str:
    """With its sign, in whole percent."""
    return f"{round(100 * ratio) + 0:+d} %" if ratio is not None else fm.DASH


def node_state(node: Node, snapshot: Snapshot, now: float) -> tuple[str, TextStyle]:
    """Glyph and word of what a node does. `now`: this machine's wall time."""
    leader, state, attempt = snapshot.state, node.state, node.state.attempt
    has_failed = attempt is not None and attempt.exit_code not in {None, 0}
    over = leader.condition if leader.is_over else state.condition
    if isinstance(over, st.Finished):
        if attempt is not None and has_failed and not attempt.ended_on_request:
            return f"✗ exit {attempt.exit_code}", TextStyle.BAD
        return outcome_span(over.outcome)
    sight = leader.nodes[node.number].sight if node.number in leader.nodes else None
    if sight is NodeSight.LEFT:
        return "✗ gone", TextStyle.BAD
    if sight is NodeSight.SILENT or (node.beat_t is not None and now - node.beat_t > SILENT_S):
        return "⚠ no sign", TextStyle.BAD
    if not ranks_of(state, leader) and node.number != LEADER:
        return ("starting" if leader.attempt is not None else "ready"), TextStyle.DIM
    match state.condition:
        case st.Running():
            return str(state.condition.phase), TextStyle.LIVE
        case st.Launching():
            return "starting", TextStyle.PLAIN
        case st.Stopping():
            return "stopping", TextStyle.WARN
        case st.Preflight():
            return "ready", TextStyle.DIM
        case st.HeldOpen() | st.Backoff():
            return "waits", TextStyle.DIM
        case _:
            return ("✗ ended", TextStyle.BAD) if has_failed else ("ended", TextStyle.DIM)


def _known(samples: Iterable[Rank], name: str) -> list[float]:
    return [value for each in samples if (value := each.values.get(name)) is not None]
