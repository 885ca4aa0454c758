"""A node's row in the ranks table: its state, its network, and the key values of its ranks (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from supervisor.run import state as st
from supervisor.run.events import NodeSight
from supervisor.run.node_files import LEADER, SILENT_S
from supervisor.run.series import NET_RECEIVED, NET_SENT
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Node, Rank, Snapshot
from supervisor.views.model.thinned_series import median
from supervisor.views.tui.panels.state_words import outcome_span
from supervisor.views.tui.widgets.paint import TextStyle


class Link(NamedTuple):
    """One interface or RDMA port: bytes per second."""

    name: str
    received: float
    sent: float


def ranks_of(state: st.RunState, leader: st.RunState) -> list[st.RankState]:
    """A node's ranks in the run's newest attempt; none until it starts that attempt."""
    attempt, newest = state.attempt, leader.attempt
    if attempt is None or newest is None or attempt.number != newest.number:
        return []
    return [rank for _, rank in sorted(attempt.ranks.items())]


def node_values(node: Node) -> dict[str, float | None]:
    """The important values of a node's ranks, by column: the least step, median and longest step time, greatest wait and memory."""
    samples = node.ranks.values()
    took = _known(samples, "step_time_s")
    memory = _known(samples, "memory_used_bytes") or _known(samples, "rss_bytes")
    used = [each for gpu in node.gpus if (each := gpu.values.get("util_ratio")) is not None]
    return {
        "step": min(_known(samples, "step"), default=None),
        "ms/step": median(took),
        "skew": max(took, default=None),
        "data": max(_known(samples, "data_wait_s"), default=None),
        "mem": max(memory, default=None),
        "cpu": node.machine.values.get("cpu_ratio") if node.machine is not None else None,
        "gpu": fmean(used) if used else None,
    }


def links_of(node: Node) -> tuple[Link, ...]:
    """The traffic of its interfaces, busiest first; idle ones are left out, unless all are idle."""
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
    """As many interfaces as fit: ``eth0 ↓112M ↑98M``; only the rates of the busiest if its name does not fit."""
    text = ""
    for link in links:
        rates = f"↓{short_rate(link.received)} ↑{short_rate(link.sent)}"
        more = f"{text}  {link.name} {rates}" if text else f"{link.name} {rates}"
        if len(more) > width:
            return text or rates
        text = more
    return text


def short_rate(bytes_per_s: float) -> str:
    """Bytes per second in at most four cells: ``0``, ``934K``, ``112M``, ``1.2G``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if bytes_per_s >= 0.9995 * size:
            number = bytes_per_s / size
            return f"{number:.1f}{unit}" if number < 9.95 else f"{number:.0f}{unit}"
    return f"{bytes_per_s:.0f}"


def percent_text(ratio: float | None) -> str:
    """A percentage with its sign, rounded."""
    return f"{round(100 * ratio) + 0:+d} %" if ratio is not None else fm.DASH


def node_state(node: Node, snapshot: Snapshot, now: float) -> tuple[str, TextStyle]:
    """Glyph and word for a node's activity. `now`: this machine's wall time."""
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
